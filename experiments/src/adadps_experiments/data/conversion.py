"""Convert the archives of the public homes to the files that the loaders read.

Each function takes the downloaded file and a folder to write to. Members of archives are read by
name and never unpacked to a path that the archive chooses; an archive with a name that leads out of
it is refused.
"""

from __future__ import annotations

import ast
import lzma
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from adadps.data.tables import read_table, write_table
from adadps.errors import DataError

LONGEST_TEXT = 2**27
"""In bytes; a larger text member cannot be genuine."""
PIECE = 2**20
_REVIEW = re.compile(r"<review>(.*?)</review>", re.DOTALL)
_IMDB_TEXT = re.compile(r"aclImdb/(train|test)/(pos|neg|unsup)/(\d+)_(\d+)\.txt")
_IMDB_URLS = re.compile(r"aclImdb/(train|test)/urls_(pos|neg|unsup)\.txt")
_MOVIE = re.compile(r"tt\d+")
_AR = b"!<arch>\n"
"""How every Debian package begins."""
_AMAZON = re.compile(r"[^/]+/(books|dvd|electronics|kitchen)[^/]*/(positive|negative)\.review")


def imdb_tables(archive: Path, folder: Path) -> None:
    """Convert ``aclImdb_v1.tar.gz`` to the labelled and the unlabelled table.

    >>> imdb_tables(Path("nowhere.tar.gz"), Path())
    Traceback (most recent call last):
    adadps.errors.DataError: Expected a whole archive at nowhere.tar.gz, found a damaged one ...
    """
    texts: dict[tuple[str, str], dict[int, tuple[str, str]]] = {}
    movies: dict[tuple[str, str], list[str]] = {}
    for name, member in _members(archive):
        if found := _IMDB_TEXT.fullmatch(name):
            split, kind, number, rating = found.groups()
            texts.setdefault((split, kind), {})[int(number)] = (
                rating,
                _text(archive, member, name),
            )
        elif found := _IMDB_URLS.fullmatch(name):
            lines = _text(archive, member, name).splitlines()
            movies[found[1], found[2]] = [_movie(archive, name, line) for line in lines]
    labelled: list[Sequence[str]] = [("split", "id", "rating", "label", "movie", "text")]
    for split in ("train", "test"):
        for kind, label in (("pos", "1"), ("neg", "0")):
            for number, movie, rating, text in _numbered(archive, split, kind, texts, movies):
                labelled.append((split, number, rating, label, movie, text))
    unlabelled: list[Sequence[str]] = [("id", "movie", "text")]
    for number, movie, _, text in _numbered(archive, "train", "unsup", texts, movies):
        unlabelled.append((number, movie, text))
    _write(folder / "imdb_labelled_50k.csv.gz", labelled)
    _write(folder / "imdb_unsup_50k.csv.gz", unlabelled)


def _numbered(
    archive: Path,
    split: str,
    kind: str,
    texts: dict[tuple[str, str], dict[int, tuple[str, str]]],
    movies: dict[tuple[str, str], list[str]],
) -> Iterator[tuple[str, str, str, str]]:
    """Yield the reviews 0, 1, ... of a folder, each with the film from its list of addresses."""
    held, named = texts.get((split, kind), {}), movies.get((split, kind), [])
    if not held or len(held) != len(named) or sorted(held) != list(range(len(held))):
        raise DataError(
            f"Expected reviews 0, 1, ... and as many addresses in aclImdb/{split} ({kind}) of "
            f"{archive.name}, found {len(held)} reviews and {len(named)} addresses. Download it "
            "again."
        )
    for number in range(len(held)):
        rating, text = held[number]
        yield str(number), named[number], rating, text


def _movie(archive: Path, name: str, line: str) -> str:
    found = _MOVIE.search(line)
    if found is None:
        raise DataError(
            f"Expected the address of a film on every line of {name} in {archive.name}, found "
            "another line. Download it again."
        )
    return found[0]


def amazon_table(archive: Path, folder: Path) -> None:
    """Convert ``domain_sentiment_data.tar.gz`` to one table; reviewers become numbers.

    >>> amazon_table(Path("nowhere.tar.gz"), Path())
    Traceback (most recent call last):
    adadps.errors.DataError: Expected a whole archive at nowhere.tar.gz, found a damaged one ...
    """
    held: dict[tuple[str, str], list[dict[str, str]]] = {}
    for name, member in _members(archive):
        if found := _AMAZON.fullmatch(name):
            text = _content(archive, member, name).decode(
                "latin-1"
            )  # its home does not mention UTF-8
            held[found[1], found[2]] = [_fields(name, review) for review in _REVIEW.findall(text)]
    rows: list[Sequence[str]] = [("domain", "label", "rating", "user_id", "title", "text")]
    people = sorted({review["reviewer"] for reviews in held.values() for review in reviews})
    numbers = {person: str(number) for number, person in enumerate(people)}
    for domain in ("books", "dvd", "electronics", "kitchen"):
        for kind, label in (("positive", "1"), ("negative", "0")):
            if not held.get((domain, kind)):
                raise DataError(
                    f"Expected reviews in {domain}/{kind}.review of {archive.name}, found none. "
                    "Download it again."
                )
            for review in held[domain, kind]:
                person = numbers[review["reviewer"]]
                known = (review["rating"], person, review["title"], review["review_text"])
                rows.append((domain, label, *known))
    _write(folder / "amazon_multidomain_8k.csv.gz", rows)


def _fields(name: str, review: str) -> dict[str, str]:
    fields = {}
    for field in ("rating", "title", "review_text", "reviewer"):
        found = re.search(f"<{field}>(.*?)</{field}>", review, re.DOTALL)
        if found is None and field != "reviewer":
            raise DataError(
                f"Expected a {field} in every review of {name}, found one without. Download the "
                "archive again."
            )
        fields[field] = found[1].strip() if found else ""
    return fields


def titles_table(original: Path, folder: Path) -> None:
    """Convert ``validation.tsv``, with tags as Python lists, to tags separated by spaces.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "v.tsv").write_bytes(b"title\\ttags\\nWhy?\\t['php', 'sql']\\n")
    >>> titles_table(folder / "v.tsv", folder)
    >>> read_table(folder / "stackoverflow_titles_30k_100tags.csv.gz").rows
    [['Why?', 'php sql']]
    """
    table = read_table(original)
    rows: list[Sequence[str]] = [("title", "tags")]
    for title, tags in zip(table.column("title"), table.column("tags"), strict=True):
        rows.append((title, " ".join(_listed(original, tags))))
    _write(folder / "stackoverflow_titles_30k_100tags.csv.gz", rows)


def _listed(original: Path, written: str) -> list[str]:
    try:
        tags = ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        tags = None
    if not isinstance(tags, list) or not all(isinstance(tag, str) and tag for tag in tags):
        raise DataError(
            f"Expected tags such as ['php', 'sql'] on every line of {original.name}, found "
            f"{written[:80]!r}. Download it again."
        )
    return tags


def members(*names: str) -> Callable[[Path, Path], None]:
    """Return a conversion that extracts some members of an archive unchanged.

    >>> members("stackoverflow.tag_count").__name__
    'unpack'
    """

    def unpack(archive: Path, folder: Path) -> None:
        missing = set(names)
        for path, member in _members(archive):
            name = PurePosixPath(path).name
            if name in missing:
                with (folder / name).open("wb") as target:
                    while piece := _read(archive, member, PIECE):
                        target.write(piece)
                missing.remove(name)
        if missing:
            raise DataError(
                f"Expected {', '.join(sorted(missing))} in {archive.name}, found no such member. "
                "Download it again."
            )

    return unpack


def debian_members(prefix: str, *names: str) -> Callable[[Path, Path], None]:
    """Return a conversion that extracts files of a Debian package, with a prefix to their names.

    >>> debian_members("fashion-mnist-", "train-labels-idx1-ubyte.gz").__name__
    'unpack'
    """

    def unpack(package: Path, folder: Path) -> None:
        inner = folder / f"data-of-{package.name}"
        with _explained(package):
            _extract_data(package, inner)
        members(*names)(inner, folder)
        inner.unlink()
        for name in names:
            (folder / name).rename(folder / f"{prefix}{name}")

    return unpack


def _extract_data(package: Path, target: Path) -> None:
    """Copy the archive ``data.tar.*`` out of a Debian package, which is an archive of ``ar``."""
    with package.open("rb") as stream:
        whole = stream.read(len(_AR)) == _AR
        while whole and len(header := stream.read(60)) == 60:
            name, size = header[:16].decode("ascii").strip(" /"), int(header[48:58])
            if name.startswith("data.tar"):
                with target.open("wb") as copy:
                    while size and (piece := stream.read(min(size, PIECE))):
                        copy.write(piece)
                        size -= len(piece)
                return
            stream.seek(size + size % 2, 1)
    raise DataError(
        f"Expected a Debian package with data.tar at {package}, found another file. Download it "
        "again."
    )


def as_it_is(name: str) -> Callable[[Path, Path], None]:
    """Return a conversion that copies the downloaded file to a name.

    >>> as_it_is("mnist.npz").__name__
    'copy'
    """

    def copy(original: Path, folder: Path) -> None:
        shutil.copyfile(original, folder / name)

    return copy


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield names and contents of the regular files in an archive."""
    with _explained(archive), tarfile.open(archive, "r|*") as tar:
        for entry in tar:
            name = PurePosixPath(entry.name)
            if name.is_absolute() or ".." in name.parts:
                raise DataError(
                    f"Expected members inside {archive.name}, found the name {entry.name!r}, which "
                    "leads out of it. Do not trust its source; nothing was unpacked."
                )
            stream = tar.extractfile(entry) if entry.isreg() else None
            if stream is not None:
                yield str(name), stream


def _read(archive: Path, member: IO[bytes], most: int) -> bytes:
    with _explained(archive):
        return member.read(most)


def _content(archive: Path, member: IO[bytes], name: str) -> bytes:
    content = _read(archive, member, LONGEST_TEXT + 1)
    if len(content) > LONGEST_TEXT:
        raise DataError(
            f"Expected at most {LONGEST_TEXT} bytes in {name}, found more. Download the archive "
            "again."
        )
    return content


def _text(archive: Path, member: IO[bytes], name: str) -> str:
    try:
        return _content(archive, member, name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"Expected text in UTF-8 in {name}, found other bytes. Download the archive again."
        ) from error


def _write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with path.open("wb") as stream:
        write_table(stream, path, rows)


@contextmanager
def _explained(archive: Path) -> Iterator[None]:
    damaged = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError)
    cut = TypeError  # tarfile raises it for a gzip file that ends within its first bytes
    try:
        yield
    except DataError:
        raise
    except (*damaged, cut, OSError) as error:  # bz2 and gzip raise OSError for damaged data
        raise DataError(
            f"Expected a whole archive at {archive}, found a damaged one ({error}). Download it "
            "again."
        ) from error
