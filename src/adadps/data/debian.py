"""Debian package descriptions: the real data that comes with the package.

30,300 packages of Debian 12 (bookworm, main) with section, tags, maintainer, user and description,
built by ``scripts/build_debian_packages.py`` from apt's own index. Maintainers (people and teams)
and users (2,009 people, or teams without a person) are numbers, and e-mail addresses are removed.
The descriptions are part of the packages and free like them (see NOTICE).
"""

from __future__ import annotations

import csv
import hashlib
import io
import lzma
from dataclasses import dataclass
from importlib.resources import files

FOLDS, TEST_FOLD = 5, 0

SECTIONS = tuple(
    """
    admin cli-mono comm database debug devel doc editors education electronics embedded fonts games
    gnome gnu-r gnustep golang graphics hamradio haskell httpd interpreters introspection java
    javascript kde kernel libdevel libs lisp localization mail math metapackages misc net news ocaml
    oldlibs otherosfs perl php python ruby rust science shells sound tasks tex text utils vcs video
    web x11 xfce zope
    """.split()  # noqa: SIM905
)
"""The sections of Debian's archive; they are declared, not read from the data."""

TAGS = tuple(files("adadps.data").joinpath("embedded/debtags.txt").read_text("utf-8").split())
"""The 598 debtags that occur in these packages, assumed to be public: Debian publishes them with
every index. A tag that only one package has would reveal that package in this list."""


@dataclass(frozen=True)
class Package:
    """One Debian package."""

    name: str
    source: str
    section: str
    tags: tuple[str, ...]
    maintainer: int
    user: int
    """The person in charge: the maintainer, or the first uploader if that is a team."""
    title: str
    body: str

    @property
    def text(self) -> str:
        """Title and description."""
        return f"{self.title}\n{self.body}"

    @property
    def fold(self) -> int:
        """The fold, 0 to 4, by source: packages of one source share their text."""
        return hashlib.sha256(self.source.encode()).digest()[0] % FOLDS

    @property
    def held_out(self) -> bool:
        """Is it in the test split?"""
        return self.fold == TEST_FOLD


def debian_packages() -> list[Package]:
    """Return all packages that come with adadps.

    >>> len(debian_packages())
    30300
    """
    packed = files("adadps.data").joinpath("embedded/debian_packages.csv.xz").read_bytes()
    rows = csv.DictReader(io.StringIO(lzma.decompress(packed).decode("utf-8"), newline=""))
    return [
        Package(
            name=row["package"],
            source=row["source"],
            section=row["section"],
            tags=tuple(row["tags"].split()),
            maintainer=int(row["maintainer"]),
            user=int(row["user"]),
            title=row["title"],
            body=row["body"],
        )
        for row in rows
    ]
