"""Build the embedded files `technical_words.csv.xz` and `public_packages.txt` from apt's index.

The packages of Debian that carry no debtag are no examples of any problem here. Their descriptions
are public text about software, and tell which words such texts use, and how often:
`technical_words.csv.xz` has the columns `word,packages`, the 20,000 words that most of those
descriptions have, the commonest first, after a first row with no word and the number of all
descriptions.

Some packages that do carry tags have the very text of one that does not. Their text is public
then, so they are no private examples: `public_packages.txt` names them, one a line.

The index files are those of `build_debian_packages.py`, which says how to get them.
"""

from __future__ import annotations

import argparse
import csv
import io
import lzma
from collections import Counter
from pathlib import Path

from build_debian_packages import (
    DATA_FOLDER,
    debtags,
    find_index,
    long_descriptions,
    newest_packages,
    read_index,
    without_addresses,
)
from sklearn.feature_extraction.text import CountVectorizer

from adadps.data.same_text import normalised
from adadps.data.technical_words import TECHNICAL_TOKEN

MOST = 20_000


def described(packages: Path, translation: Path) -> tuple[dict[str, str], list[str]]:
    """Name and text of the packages with tags, and the texts of those without."""
    bodies = long_descriptions(read_index(translation))
    tagged: dict[str, str] = {}
    others: list[str] = []
    for stanza in newest_packages(read_index(packages)):
        title = stanza["Description"].split("\n")[0]
        text = without_addresses(f"{title}\n{bodies.get(stanza['Description-md5'], '')}")
        if debtags(stanza.get("Tag", "")):
            tagged[stanza["Package"]] = text
        else:
            others.append(text)
    return tagged, others


def packed_words(texts: list[str]) -> bytes:
    """The table of words, packed; equally common words stand in alphabetical order."""
    words = CountVectorizer(token_pattern=TECHNICAL_TOKEN).build_analyzer()
    having = Counter(word for text in texts for word in set(words(text)))
    rows = sorted(having.items(), key=lambda entry: (-entry[1], entry[0]))[:MOST]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([("word", "packages"), ("", len(texts)), *rows])
    return lzma.compress(buffer.getvalue().encode("utf-8"), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build technical_words.csv.xz from apt's index.")
    parser.add_argument("--packages", type=Path, help="Packages file (default: ask apt)")
    parser.add_argument("--translation", type=Path, help="Translation-en file (default: ask apt)")
    parser.add_argument("--out", type=Path, default=DATA_FOLDER)
    args = parser.parse_args()
    packages = args.packages or find_index("Packages", "--packages")
    translation = args.translation or find_index("Translations", "--translation")

    tagged, others = described(packages, translation)
    public = {normalised(text) for text in others}
    both = [name for name, text in tagged.items() if normalised(text) in public]
    (args.out / "technical_words.csv.xz").write_bytes(packed_words(others))
    names = "".join(f"{name}\n" for name in sorted(both))
    (args.out / "public_packages.txt").write_text(names, encoding="utf-8")
    print(f"{len(others)} descriptions; {len(both)} of {len(tagged)} tagged packages share one")


if __name__ == "__main__":
    main()
