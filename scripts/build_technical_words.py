"""Build the file `technical_words.csv.xz` of the experiments from apt's index.

The descriptions of Debian's packages are public texts about software: they show which words such
texts use, and how often. Packages with debtags are examples of an experiment, so the words of all
others are counted. The file has the columns `word,packages` and holds the 20,000 most common words,
the most common first. Its first row has no word, and the number of all descriptions.

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
    debtags,
    find_index,
    long_descriptions,
    newest_packages,
    read_index,
    without_addresses,
)
from sklearn.feature_extraction.text import CountVectorizer

from adadps_experiments.data.technical_words import TECHNICAL_TOKEN

MOST = 20_000
DATA_FOLDER = Path(__file__).parents[1] / "experiments/src/adadps_experiments/data/embedded"


def described(packages: Path, translation: Path) -> list[str]:
    """Return titles and descriptions of the packages without tags."""
    bodies = long_descriptions(read_index(translation))
    texts = []
    for stanza in newest_packages(read_index(packages)):
        if not debtags(stanza.get("Tag", "")):
            title = stanza["Description"].split("\n")[0]
            body = bodies.get(stanza["Description-md5"], "")
            texts.append(without_addresses(f"{title}\n{body}"))
    return texts


def packed_words(texts: list[str]) -> bytes:
    """Return the compressed table of words; equally common words are in alphabetical order."""
    words = CountVectorizer(token_pattern=TECHNICAL_TOKEN).build_analyzer()
    counts = Counter(word for text in texts for word in set(words(text)))
    rows = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:MOST]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([("word", "packages"), ("", len(texts)), *rows])
    return lzma.compress(buffer.getvalue().encode("utf-8"), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build technical_words.csv.xz from apt's index.")
    parser.add_argument("--packages", type=Path, help="Packages file (default: ask apt)")
    parser.add_argument("--translation", type=Path, help="Translation-en file (default: ask apt)")
    parser.add_argument("--out", type=Path, default=DATA_FOLDER / "technical_words.csv.xz")
    args = parser.parse_args()
    packages = args.packages or find_index("Packages", "--packages")
    translation = args.translation or find_index("Translations", "--translation")

    texts = described(packages, translation)
    args.out.write_bytes(packed_words(texts))
    print(f"{args.out}: words of {len(texts)} descriptions")


if __name__ == "__main__":
    main()
