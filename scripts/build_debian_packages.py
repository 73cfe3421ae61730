"""Build the embedded files `debian_packages.csv.xz` and `debtags.txt` from apt's own index files.

Output: one row for each package of Debian bookworm (main, amd64 and all) that carries at least one
debtag, with the columns `package,source,section,tags,maintainer,user,title,body`, sorted by package
name, as a UTF-8 CSV file compressed with xz. The same index files give the same bytes (with the
same liblzma). Beside it, `debtags.txt`: all tags that the index uses, one per line, sorted.

Input: `Packages` (section, maintainer, debtags, short description, Description-md5),
`Translation-en` (long descriptions, joined by Description-md5) and `Sources` (uploaders), as
`apt-get update` leaves them on a Debian machine. On a machine without translations, get them with

    apt-get -o Acquire::Languages=en update

and on one without `Sources`, add a `deb-src` line for bookworm main.

The user of a package is its maintainer, or the first uploader of its source where the maintainer's
address is that of a team. Teams without uploaders, and the group that takes orphaned packages, are
users themselves.

Licence: the descriptions are part of Debian's package index, and each one carries the licence of
its package; everything in `main` is free under the Debian Free Software Guidelines.

Personal data: maintainers and users are replaced by numbers, in the order of first appearance, and
e-mail addresses inside the descriptions by `<email>`. Names that authors wrote into a
description (for example an "Author:" line) are part of the text and stay.
"""

from __future__ import annotations

import argparse
import csv
import io
import lzma
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from email.utils import getaddresses, parseaddr
from pathlib import Path

CODENAME = "bookworm"
COMPONENT = "main"
ARCHITECTURES = ("amd64", "all")
COLUMNS = ("package", "source", "section", "tags", "maintainer", "user", "title", "body")
MAX_BYTES = 4_000_000
DATA_FOLDER = Path(__file__).resolve().parents[1] / "src/adadps/data/embedded"

APT_HELPER = "/usr/lib/apt/apt-helper"
APT_LANGUAGE = ("-o", "Acquire::Languages=en")
TARGET_FIELDS = ("CREATED_BY", "ORIGIN", "CODENAME", "COMPONENT", "ARCHITECTURE", "LANGUAGE")
OF_KIND = {
    "Packages": {"ARCHITECTURE": "amd64"},
    "Translations": {"LANGUAGE": "en"},
    "Sources": {},
}
HOW_TO_GET = f"""\
no {{kind}} index of Debian {CODENAME}/{COMPONENT} found; get it (as root) with
    apt-get -o Acquire::Languages=en update
or put  Acquire::Languages "en";  into a file in /etc/apt/apt.conf.d and run  apt-get update
(`Sources` comes with a deb-src line for {CODENAME} {COMPONENT};
a machine that is not amd64 needs  dpkg --add-architecture amd64  before that),
or name the file with {{option}} FILE"""

ADDRESS = r"[\w.%+-]+@(?:[\w-]+\.)+[^\W\d_]{2,}"
EMAIL = re.compile(f"<{ADDRESS}>|{ADDRESS}")
TEAM = re.compile(r"@.*lists|@tracker\.|@packages\.|team")
"""Matches addresses that several people share."""
BRACES = re.compile(r"([^\s,{}]+)\{([^{}]*)\}")

Stanza = dict[str, str]


def find_index(kind: str, option: str) -> Path:
    """Return the file where apt stores an index of this kind, or exit with advice."""
    wanted = {"CREATED_BY": kind, "ORIGIN": "Debian", "CODENAME": CODENAME, "COMPONENT": COMPONENT}
    wanted |= OF_KIND[kind]
    line_format = "|".join(f"$({field})" for field in (*TARGET_FIELDS, "FILENAME"))
    command = ["apt-get", *APT_LANGUAGE, "indextargets", "--format", line_format]
    try:
        listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"apt does not list its index files: {error}")
    for line in listing.splitlines():
        *values, filename = line.split("|", len(TARGET_FIELDS))
        target = dict(zip(TARGET_FIELDS, values, strict=True))
        if wanted.items() <= target.items() and Path(filename).is_file():
            return Path(filename)
    sys.exit(HOW_TO_GET.format(kind=kind, option=option))


def read_index(path: Path) -> str:
    """Return the text of an index file, however apt has compressed it."""
    command = [APT_HELPER, "cat-file", str(path)]
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode("utf-8")
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"cannot read {path}: {error}")


def stanzas(text: str) -> Iterator[Stanza]:
    """Yield the paragraphs of an index; continuation lines of a field keep their leading blank."""
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        stanza: Stanza = {}
        name = ""
        for line in paragraph.split("\n"):
            if line.startswith((" ", "\t")):
                stanza[name] += "\n" + line
            else:
                name, _, value = line.partition(":")
                stanza[name] = value.strip()
        yield stanza


def version_key(version: str) -> tuple[object, ...]:
    """Return a sort key that orders version numbers as dpkg does."""

    def part_key(part: str) -> tuple[tuple[tuple[int, ...], int], ...]:
        pairs = re.findall(r"(\D*)(\d*)", part)
        return tuple(((*map(rank, text), 0), int(number or 0)) for text, number in pairs)

    def rank(char: str) -> int:
        return -1 if char == "~" else ord(char) if char.isalpha() else ord(char) + 256

    epoch, _, rest = version.rpartition(":")
    upstream, dash, revision = rest.rpartition("-")
    if not dash:
        upstream, revision = rest, "0"
    return int(epoch or 0), part_key(upstream), part_key(revision)


def newest_packages(text: str) -> list[Stanza]:
    """Return the newest version of each package, sorted by name."""
    newest = newest_of(s for s in stanzas(text) if s.get("Architecture") in ARCHITECTURES)
    return [newest[name] for name in sorted(newest)]


def newest_of(found: Iterable[Stanza]) -> dict[str, Stanza]:
    """Map each name to the stanza of its newest version."""
    newest: dict[str, Stanza] = {}
    for stanza in found:
        known = newest.get(stanza["Package"])
        if known is None or version_key(known["Version"]) < version_key(stanza["Version"]):
            newest[stanza["Package"]] = stanza
    return newest


def users_of_sources(text: str) -> dict[str, str]:
    """Map each source to the address of the person who maintains it."""
    return {name: person(stanza) for name, stanza in newest_of(stanzas(text)).items()}


def person(source: Stanza) -> str:
    """Return the maintainer, or the first uploader if a team maintains the source."""
    maintainer = address_of(source["Maintainer"])
    listed = " ".join(source.get("Uploaders", "").split())
    uploaders = [address.lower() for _, address in getaddresses([listed]) if "@" in address]
    return uploaders[0] if uploaders and TEAM.search(maintainer) else maintainer


def address_of(field: str) -> str:
    return parseaddr(field)[1].lower() or field


def long_descriptions(text: str) -> dict[str, str]:
    """Map each Description-md5 to its long description."""
    return {s["Description-md5"]: long_part(s["Description-en"]) for s in stanzas(text)}


def long_part(description: str) -> str:
    """Return the lines after the first without their leading blank; a dot is an empty line."""
    lines = [line[1:].rstrip() for line in description.split("\n")[1:]]
    return "\n".join("" if line.strip() == "." else line for line in lines)


def debtags(field: str) -> list[str]:
    """Return the tags of a Tag field, with `a::{b,c}` expanded to `a::b`, `a::c`."""

    def expand(match: re.Match[str]) -> str:
        return ",".join(match[1] + tail.strip() for tail in match[2].split(","))

    tags = (tag.strip() for tag in BRACES.sub(expand, field).split(","))
    return list(dict.fromkeys(tag for tag in tags if tag))


def without_addresses(text: str) -> str:
    return EMAIL.sub("<email>", text)


def table(
    packages: list[Stanza], bodies: dict[str, str], people: dict[str, str]
) -> Iterator[tuple[str | int, ...]]:
    """Yield the rows of the data set: the packages that have a debtag."""
    maintainers: dict[str, int] = {}
    users: dict[str, int] = {}
    for stanza in packages:
        tags = debtags(stanza.get("Tag", ""))
        if not tags:
            continue
        source = stanza.get("Source", stanza["Package"]).split(" ")[0]
        yield (
            stanza["Package"],
            source,
            stanza["Section"].rpartition("/")[2],
            " ".join(tags),
            maintainers.setdefault(address_of(stanza["Maintainer"]), len(maintainers)),
            users.setdefault(people[source], len(users)),
            without_addresses(stanza["Description"].split("\n")[0]),
            without_addresses(bodies.get(stanza["Description-md5"], "")),
        )


def tag_list(rows: list[tuple[str | int, ...]]) -> str:
    """Return all tags of the rows, one per line, sorted."""
    place = COLUMNS.index("tags")
    tags = {tag for row in rows for tag in str(row[place]).split()}
    return "".join(f"{tag}\n" for tag in sorted(tags))


def packed_csv(rows: list[tuple[str | int, ...]]) -> bytes:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    return lzma.compress(buffer.getvalue().encode("utf-8"), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build debian_packages.csv.xz from apt's index.")
    parser.add_argument("--packages", type=Path, help="Packages file (default: ask apt)")
    parser.add_argument("--translation", type=Path, help="Translation-en file (default: ask apt)")
    parser.add_argument("--sources", type=Path, help="Sources file (default: ask apt)")
    parser.add_argument("--out", type=Path, default=DATA_FOLDER / "debian_packages.csv.xz")
    parser.add_argument("--tags", type=Path, default=DATA_FOLDER / "debtags.txt")
    args = parser.parse_args()
    packages_file = args.packages or find_index("Packages", "--packages")
    translation_file = args.translation or find_index("Translations", "--translation")
    sources_file = args.sources or find_index("Sources", "--sources")

    people = users_of_sources(read_index(sources_file))
    bodies = long_descriptions(read_index(translation_file))
    rows = list(table(newest_packages(read_index(packages_file)), bodies, people))
    packed = packed_csv(rows)
    if len(packed) > MAX_BYTES:
        sys.exit(f"{len(packed)} bytes are more than {MAX_BYTES}: not written")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(packed)
    args.tags.write_text(tag_list(rows), encoding="utf-8")
    without_body = sum(row[-1] == "" for row in rows)
    print(f"{args.out}: {len(rows)} packages ({without_body} without long description)")


if __name__ == "__main__":
    main()
