"""Ways to spoil bytes, JSON values and lines of text, drawn from a generator."""

from __future__ import annotations

import json
import random
from typing import Any

_WORDS = """
0 -1 1 2 -0.0 1e-300 1e300 1e308 1e999 -1e999 NaN Infinity -Infinity 0.5 1.5 2147483648 1e-400
9223372036854775807 9223372036854775808 18446744073709551616 0x10 1_000 ٣ -5 1000000
"""
NUMBERS = (*_WORDS.split(), "9" * 400, "1" * 5000)
TEXTS = (
    *("", " ", "\0", "\n", "\r", "\r\n", "\t", ",", '"', '""', "'", "{}", "%s", "{0}", "\\", "--"),
    *("\ufeff", "\u2028", "\u202e", "\ud800", "\udce9", "é", "e\u0301", "ﬁ", "𝔘", "İ", "ß", "ǅ"),
    *("\x1b[31m", "[bold]", "[/]", "[red", "../..", "/", ".", "~", "-", "--json", "=cmd()"),
    *("null", "true", "None", "nan", "the the the", "a" * 1000, "word " * 300, "\\ud800"),
)
BYTES = (
    *(b"\0", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),
    *(b"\x1f\x8b", b"PK\x03\x04", b"\x80\x04.", b"\xff" * 8, b"\0" * 16, b"SQLite format 3\0"),
    *(b'"', b",", b"\n", b"\r", b"\r\n", b"\t", b"{", b"}", b"[", b"]", b":", b"\\"),
)


def number(rng: random.Random) -> str:
    """A number as text: odd, huge, or none at all."""
    drawn = rng.random()
    if drawn < 0.5:
        return rng.choice(NUMBERS)
    if drawn < 0.75:
        return str(rng.randint(-(10 ** rng.randint(0, 30)), 10 ** rng.randint(0, 30)))
    return repr(rng.uniform(-1, 1) * 10.0 ** rng.randint(-320, 308))


def text(rng: random.Random) -> str:
    """A text: odd, long, or of odd characters."""
    drawn = rng.random()
    if drawn < 0.6:
        return rng.choice(TEXTS)
    if drawn < 0.8:
        return number(rng)
    return "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0x110000)))) for _ in range(9))


def spoiled(rng: random.Random, content: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """The bytes after a few changes; now and then none."""
    held = bytearray(content)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        place = rng.randrange(len(held) + 1)
        end = min(len(held), place + rng.choice((1, 2, 4, 16, 200)))
        kind = rng.randrange(9)
        if kind == 0 and place < len(held):
            held[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del held[place:]
        elif kind == 2:
            del held[place:end]
        elif kind == 3:
            held[place:place] = held[place:end] * rng.choice((1, 2, 50))
        elif kind == 4:
            held[place:place] = rng.choice(BYTES)
        elif kind == 5:
            held[place:end] = rng.choice(BYTES)
        elif kind == 6:
            held[place:end] = number(rng).encode()
        elif kind == 7:
            held[place:place] = text(rng).encode("utf-8", "surrogatepass")
        elif others:
            other = rng.choice(others)
            begin = rng.randrange(len(other) + 1)
            held[place:] = other[begin : begin + 5000]
    return bytes(held)


def odd_value(rng: random.Random, depth: int = 0) -> Any:
    """A value for JSON that was not expected."""
    kind = rng.randrange(9 if depth < 3 else 7)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind in (1, 2):
        return rng.choice((0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**400, rng.randint(-9, 9)))
    if kind in (3, 4):
        return rng.choice((0.0, -0.0, 0.5, 1e308, 5e-324, float("nan"), float("inf"), rng.random()))
    if kind in (5, 6):
        return text(rng)
    inner = [odd_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return inner if kind == 7 else {text(rng): value for value in inner}


def spoiled_json(rng: random.Random, content: Any) -> str:
    """JSON text in which a few values were replaced, dropped, doubled, or buried."""
    held = json.loads(json.dumps(content))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        held = _change_one(rng, held)
    written = json.dumps(held, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.03:
        depth = rng.choice((10, 500, 5_000, 100_000))
        written = written.replace(":", ":" + "[" * depth + "]" * depth + ',"x":', 1)
    if rng.random() < 0.1 and "{" in written:
        place = written.index("{") + 1
        name = rng.choice(list(held)) if isinstance(held, dict) and held else "x"
        written = f"{written[:place]}{json.dumps(name)}: {number(rng)}, {written[place:]}"
    return written


def _change_one(rng: random.Random, held: Any) -> Any:
    path, node = [], held
    while isinstance(node, dict | list) and node and (not path or rng.random() < 0.8):
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        path.append((node, key))
        node = node[key]
    if not path:
        return odd_value(rng)
    parent, key = path[-1]
    kind = rng.randrange(6)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(key, parent[key])
    elif kind == 1:
        parent[text(rng)] = parent[key]
    elif kind == 2 and isinstance(node, str):
        parent[key] = node + text(rng)
    elif kind == 3 and isinstance(node, int | float):
        parent[key] = rng.choice((str(node), -node, node * 10**6, [node], node + 1))
    else:
        parent[key] = odd_value(rng)
    return held
