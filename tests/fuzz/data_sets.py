"""Spoiled originals of data sets, files of counts and h5 files."""

from __future__ import annotations

import io
import random
import tarfile
from functools import cache
from pathlib import Path

import h5py
import numpy as np

from adadps.data.tables import read_table
from adadps_experiments.data import conversion
from adadps_experiments.data.tff_counts import tag_counts, word_counts
from adadps_experiments.data.tff_stackoverflow import FIELDS, StackOverflowUsers
from fuzz.law import BreachError, ending_of
from fuzz.mutation import spoiled, text

TEXTS = ("how to sort ?", "c#|vb . net", "naïve →", "", "a\0b")
ODD_NAMES = ("../x", "/x", "aclImdb/../../x", "", ".", "a\nb", "aclImdb/train/pos/0_9.txt")


@cache
def imdb_members() -> dict[str, bytes]:
    """A small set of IMDB's layout."""
    held = {}
    for split, kind in (
        ("train", "pos"),
        ("train", "neg"),
        ("test", "pos"),
        ("test", "neg"),
        ("train", "unsup"),
    ):
        for number in range(2):
            held[f"aclImdb/{split}/{kind}/{number}_7.txt"] = f"{kind} {number}<br />".encode()
        held[f"aclImdb/{split}/urls_{kind}.txt"] = b"http://x/title/tt07/y\n" * 2
    return held


@cache
def amazon_members() -> dict[str, bytes]:
    """A small set of the layout of Amazon's reviews."""
    review = (
        b"<review>\n<rating>\n5.0\n</rating>\n<title>\nt\n</title>\n<reviewer>\nA\n</reviewer>\n"
        b"<review_text>\nwords\n</review_text>\n</review>\n"
    )
    return {
        f"sorted_data_acl/{domain}/{kind}.review": review * 2
        for domain in ("books", "dvd", "electronics", "kitchen_&_housewares")
        for kind in ("positive", "negative")
    }


def archives(rng: random.Random, folder: Path) -> None:
    """An archive with spoiled members, names or bytes, through a conversion."""
    members, convert = rng.choice(
        (
            (imdb_members(), conversion.imdb_tables),
            (amazon_members(), conversion.amazon_table),
            ({"stackoverflow.tag_count": b"{}"}, conversion.members("stackoverflow.tag_count")),
        )
    )
    packed = _packed(rng, dict(members))
    if rng.random() < 0.4:
        packed = spoiled(rng, packed, (packed,))
    place, made = folder / "archive", folder / "in" / "made"
    place.write_bytes(packed)
    made.mkdir(parents=True)
    well = ending_of(lambda: convert(place, made)).error is None
    outside = {path.name for path in folder.rglob("*")} - {"archive", "in", "made"}
    if outside - {path.name for path in made.iterdir()}:
        raise BreachError(f"an archive wrote {outside}")
    for table in made.glob("*.csv.gz"):
        if well:
            ending_of(lambda table=table: read_table(table))


def _packed(rng: random.Random, members: dict[str, bytes]) -> bytes:
    for _ in range(rng.choice((0, 0, 1, 2))):
        if not members:
            break
        name = rng.choice(sorted(members))
        content = members.pop(name)
        kind = rng.randrange(3)
        if kind == 0:
            members[name] = spoiled(rng, content)
        elif kind == 1:
            members[rng.choice((*ODD_NAMES, text(rng)))] = content
    packed = io.BytesIO()
    how = rng.choice(("w:gz", "w:bz2", "w"))
    form = {"format": tarfile.GNU_FORMAT, "errors": "surrogatepass"}
    with tarfile.open(fileobj=packed, mode=how, **form) as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if rng.random() < 0.01:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def counts(rng: random.Random, folder: Path) -> None:
    """Spoiled files of words and tags with counts."""
    words, tags = folder / "words", folder / "tags"
    words.write_bytes(spoiled(rng, b"the 9\nto 8\n<URL> 7\n"))
    tags.write_bytes(spoiled(rng, b'{"c#": 9, "vb . net": 7, "java": 1}'))
    most = rng.choice((1, 2, 3))
    ending_of(lambda: word_counts(words, most))
    ending_of(lambda: tag_counts(tags, most))


def h5_files(rng: random.Random, folder: Path) -> None:
    """A sound h5 file with datasets that are missing, odd or of other lengths.

    Its bytes are not spoiled: the HDF5 library itself may read for ever in a damaged heap.
    """
    file = folder / "s.h5"
    _write_h5(rng, file)
    opened = ending_of(lambda: StackOverflowUsers(file)).value
    if opened is not None:
        with opened:
            for user in (*opened.users, "nobody"):
                ending_of(lambda user=user: opened.sentences(user))


def _write_h5(rng: random.Random, file: Path) -> None:
    with h5py.File(file, "w") as held:
        if rng.random() < 0.05:
            held["examples"] = 7
            return
        groups = held.create_group("examples" if rng.random() < 0.95 else "others")
        for user in range(rng.randrange(4)):
            if rng.random() < 0.05:
                groups[f"{user}"] = np.zeros(3)
                continue
            group, length = groups.create_group(f"{user}"), rng.randrange(4)
            for name in FIELDS:
                if rng.random() < 0.97:
                    _write_dataset(rng, group, name, length)


def _write_dataset(rng: random.Random, group: h5py.Group, name: str, length: int) -> None:
    kind = rng.randrange(40)
    if kind == 0:
        group.create_group(name)
    elif kind == 1:
        group[name] = rng.choice((7, 1.5, b"text", np.zeros((2, 2)), np.zeros(length, bool)))
    elif kind == 2:
        group.create_dataset(name, shape=(rng.choice((2**40, 10**8)),), dtype="i8", chunks=(1024,))
    elif kind == 3:
        group[name] = h5py.Empty("S4")
    elif kind == 4:
        group[name] = h5py.SoftLink(rng.choice(("/nowhere", f"{group.name}/{name}", "/examples")))
    elif kind == 5:
        group[name] = h5py.ExternalLink("/etc/hostname", "/")
    elif kind == 6:
        group[name] = np.array([b"\xff\xfe"] * length or [b""])
    elif name == "score":
        group[name] = np.array([rng.randrange(-9, 9) for _ in range(length)], dtype=np.int64)
    else:
        values = np.array([rng.choice(TEXTS[:4]) for _ in range(length)], dtype=object)
        group.create_dataset(name, data=values, dtype=h5py.string_dtype())
