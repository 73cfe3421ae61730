"""Stack Overflow by user, from the h5 files of TensorFlow Federated.

Layout: a group ``examples/<user>`` per user with the datasets ``tokens``, ``title``, ``tags``,
``score``, ``creation_date`` and ``type``, one entry per sentence of a question or an answer; tags
are separated by ``|``. The training file has 342,477 users, so users are read one at a time. Use
files from trusted sources only: the HDF5 library is not hardened against hostile files, and some
damaged ones make it read forever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from adadps.errors import DataError
from adadps_experiments.data.finding import require
from adadps_experiments.data.named_sets import STACKOVERFLOW

TEXTS = ("tokens", "title", "tags", "creation_date", "type")
FIELDS = (*TEXTS, "score")
MOST_ENTRIES = 10**7
"""The most entries of one user; real users have far fewer."""


@dataclass(frozen=True)
class Sentence:
    """One entry: a sentence of a question or an answer, with facts about its question."""

    tokens: str
    title: str
    tags: tuple[str, ...]
    score: int
    creation_date: str
    type: str

    @property
    def text(self) -> str:
        """Return sentence and title, the input of tag prediction."""
        return f"{self.tokens} {self.title}"


class StackOverflowUsers:
    """The users of one file, each read on request.

    It is a context manager: the file is open until the end of the block.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with _explained(self.path):
            self._file = _h5py().File(self.path, "r")
        try:
            with _explained(self.path):
                self._groups = self._file.get("examples")
                self.users = self._names()
        except BaseException:
            self.close()
            raise

    def _names(self) -> tuple[str, ...]:
        if not isinstance(self._groups, _h5py().Group):
            raise DataError(
                f"Expected a group 'examples' with a group for each user in {self.path}, found "
                "none. Is it a file of TensorFlow Federated's Stack Overflow?"
            )
        names = tuple(self._groups)
        if not names:
            raise DataError(f"Expected users in {self.path}, found none. Check the file.")
        return names

    def __len__(self) -> int:
        return len(self.users)

    def __iter__(self) -> Iterator[tuple[str, tuple[Sentence, ...]]]:
        """Yield users in the order of the file, each with all entries."""
        for user in self.users:
            yield user, self.sentences(user)

    def sentences(self, user: str) -> tuple[Sentence, ...]:
        """Return all entries of a user, in the order of the file."""
        with _explained(self.path):
            group = self._groups.get(user)
            if not isinstance(group, _h5py().Group):
                raise DataError(
                    f"Expected a user '{user}' in {self.path}, found no such group. Choose one of "
                    "`users`."
                )
            held = {name: self._column(user, group, name) for name in FIELDS}
        lengths = {name: len(column) for name, column in held.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(
                f"Expected datasets of equal length for user '{user}' in {self.path}, found "
                f"{lengths}. The file is damaged: get it again."
            )
        rows = zip(*(held[name] for name in FIELDS), strict=True)
        return tuple(
            Sentence(tokens, title, _tags(tags), score, date, kind)
            for tokens, title, tags, date, kind, score in rows
        )

    def _column(self, user: str, group: Any, name: str) -> list[Any]:
        dataset = group.get(name)
        where = f"'examples/{user}/{name}' in {self.path}"
        if not isinstance(dataset, _h5py().Dataset):
            raise DataError(
                f"Expected a dataset {where}, found none. The file has another layout or is "
                "damaged: get it again."
            )
        if dataset.ndim != 1 or dataset.size > MOST_ENTRIES:
            raise DataError(
                f"Expected a list of at most {MOST_ENTRIES} entries {where}, found the shape "
                f"{dataset.shape}. The file is damaged: get it again."
            )
        values = dataset[()].tolist()
        return [_text(where, v) if name in TEXTS else _whole(where, v) for v in values]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def stackoverflow_train() -> StackOverflowUsers:
    """Open the posts before 2018 of 342,477 users.

    >>> with stackoverflow_train() as users:  # doctest: +SKIP
    ...     print(users.sentences(users.users[0])[0].tags)
    ('c#', '.net')
    """
    return _opened("stackoverflow_train.h5")


def stackoverflow_held_out() -> StackOverflowUsers:
    """Open all posts of the 38,758 users whose number ends in zero, who are in no other file.

    >>> len(stackoverflow_held_out())  # doctest: +SKIP
    38758
    """
    return _opened("stackoverflow_held_out.h5")


def stackoverflow_test() -> StackOverflowUsers:
    """Open the posts from 2018 on of 204,088 users.

    >>> len(stackoverflow_test())  # doctest: +SKIP
    204088
    """
    return _opened("stackoverflow_test.h5")


def _opened(name: str) -> StackOverflowUsers:
    return StackOverflowUsers(require(STACKOVERFLOW, STACKOVERFLOW.file(name)))


def _tags(written: str) -> tuple[str, ...]:
    return tuple(tag.strip() for tag in written.split("|") if tag.strip())


def _text(where: str, value: object) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"Expected text in UTF-8 {where}, found other bytes. Get the file again."
            ) from error
    if isinstance(value, str):
        return value
    raise DataError(f"Expected texts {where}, found {type(value).__name__}. Get the file again.")


def _whole(where: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise DataError(
        f"Expected whole numbers {where}, found {type(value).__name__}. Get the file again."
    )


def _h5py() -> Any:
    """Import the optional package that reads h5 files."""
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            "Expected the package h5py to read Stack Overflow's h5 files, found none. Install it: "
            "pip install 'adadps-experiments[h5]'"
        ) from error
    return h5py


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"Expected a file at {path}, found nothing. Check the path.") from error
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, MemoryError) as error:
        # h5py raises any of these for damaged files
        raise DataError(
            f"Expected a whole HDF5 file at {path}, found a damaged or another one ({error}). "
            "Get it again."
        ) from error
