"""The words and tags of Stack Overflow that TensorFlow Federated publishes with its counts.

Both files count *over the training set itself*: in how many users' posts a word or tag occurs.
TensorFlow Federated released them without differential privacy. Anyone who takes the vocabulary
from them declares them public; on private data this would be a leak.

``stackoverflow.word_count`` is text, one word and its count per line, the most frequent first;
``stackoverflow.tag_count`` is a JSON object of tags and counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from adadps.errors import DataError
from adadps.files import parse_json
from adadps_experiments.data.finding import require
from adadps_experiments.data.named_sets import STACKOVERFLOW

WORDS, TAGS = 10_000, 500
"""The sizes that the literature uses for tag prediction."""
_COUNT = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Vocabulary:
    """Words and tags, the most frequent first, with the number of users of each."""

    words: tuple[str, ...] = field(repr=False)
    tags: tuple[str, ...] = field(repr=False)
    users_of_word: tuple[int, ...] = field(repr=False)
    users_of_tag: tuple[int, ...] = field(repr=False)


def stackoverflow_vocabulary(*, words: int = WORDS, tags: int = TAGS) -> Vocabulary:
    """Load the most frequent words and tags of TensorFlow Federated's public counts.

    >>> len(stackoverflow_vocabulary().words)  # doctest: +SKIP
    10000
    """
    of_words = word_counts(_path("stackoverflow.word_count"), words)
    of_tags = tag_counts(_path("stackoverflow.tag_count"), tags)
    return Vocabulary(
        tuple(of_words), tuple(of_tags), tuple(of_words.values()), tuple(of_tags.values())
    )


def _path(name: str) -> Path:
    return require(STACKOVERFLOW, STACKOVERFLOW.file(name))


def word_counts(path: Path, most: int) -> dict[str, int]:
    """Read the first ``most`` words of a file of words and counts.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "stackoverflow.word_count"
    >>> _ = file.write_text("the 9\\nto 8\\ni 7\\n", encoding="utf-8")
    >>> word_counts(file, 2)
    {'the': 9, 'to': 8}
    """
    counts: dict[str, int] = {}
    for number, line in enumerate(_lines(path, most), 1):
        word, _, count = " ".join(line.split()).rpartition(" ")
        if not word or word in counts or not _COUNT.fullmatch(count):
            raise DataError(
                f"Expected a new word and its count on every line of {path}, found another line "
                f"{number}. Get the file again."
            )
        counts[word] = int(count)
    return _enough(path, counts, most)


def _lines(path: Path, most: int) -> list[str]:
    try:
        with path.open(encoding="utf-8", newline="\n") as stream:
            return list(islice(stream, most))
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def tag_counts(path: Path, most: int) -> dict[str, int]:
    """Read the ``most`` most frequent tags of a JSON object; ties keep the file's order.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "stackoverflow.tag_count"
    >>> _ = file.write_text('{"c": 1, "java": 7, "vb . net": 3}', encoding="utf-8")
    >>> tag_counts(file, 2)
    {'java': 7, 'vb . net': 3}
    """
    try:
        held = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(held, dict) or not all(
        type(count) is int and count >= 0 for count in held.values()
    ):
        raise DataError(
            f"Expected a JSON object of tags and counts in {path}, found another one. Get the file "
            "again."
        )
    by_count = sorted(held.items(), key=lambda item: -item[1])
    return _enough(path, dict(by_count[:most]), most)


def _enough(path: Path, counts: dict[str, int], most: int) -> dict[str, int]:
    if len(counts) < most:
        raise DataError(
            f"Expected at least {most} entries in {path}, found {len(counts)}. Ask for fewer, or "
            "get the file again."
        )
    return counts


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(
        f"Expected a file of counts at {path}, found: {error}. Get it again with: adadps data "
        "fetch stackoverflow"
    )
