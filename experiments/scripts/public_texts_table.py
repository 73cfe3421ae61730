"""Make docs/results/defaults/public-texts.json run by run, and the table of public texts.

    python experiments/scripts/public_texts_table.py               # make the runs that are missing
    python experiments/scripts/public_texts_table.py --markdown    # print the table

Each run is `adadps train` with nothing but columns, classes, the number of examples, ε and the
public texts. Splits are those of `adadps reproduce defaults`. Delete lines of the JSON file to make
their runs again. IMDB and Amazon are looked for where `adadps data` finds them (ADADPS_DATA).
"""

import argparse
import csv
import json
import tempfile
from functools import cache
from pathlib import Path

from adadps.data.tables import read_table
from adadps.estimators.tables import public_start, training
from adadps.estimators.tables.request import TrainingRequest
from adadps.methods.side import fitted
from adadps_experiments.data.imdb import imdb_unlabelled
from adadps_experiments.reproduce.defaults.problems import load_problem

JSON = Path(__file__).parents[2] / "docs" / "results" / "defaults" / "public-texts.json"
UNLABELLED, AMAZON, IMDB = "unlabelled reviews of films", "amazon, labelled", "imdb, labelled"
CASES = (
    ("imdb", 0.5, UNLABELLED),
    ("imdb", 1.5, UNLABELLED),
    ("amazon", 0.5, UNLABELLED),
    ("amazon", 1.0, UNLABELLED),
    ("amazon", 0.5, IMDB),
    ("amazon", 1.0, IMDB),
    ("imdb", 0.5, AMAZON),
    ("imdb", 1.5, AMAZON),
)
RUNS = 3
LABELS = ("negative", "positive")


@cache
def file_of(name: str, part: str, folder: Path) -> Path:
    """Write a table of texts, with labels if it has any."""
    path = folder / f"{name}-{part}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        if part == UNLABELLED:
            rows = [("text",), *((text,) for text in imdb_unlabelled())]
        else:
            held = getattr(load_problem(name), part)
            labels = [LABELS[number] for number in held.targets]
            rows = [("text", "label"), *zip(held.rows, labels, strict=True)]
        csv.writer(file).writerows(rows)
    return path


def public_file(public: str, folder: Path) -> Path:
    """Return the public table; of a labelled set, its training rows."""
    if public == UNLABELLED:
        return file_of("imdb", UNLABELLED, folder)
    return file_of(public.partition(",")[0], "train", folder)


def run(name: str, epsilon: float, public: str, folder: Path) -> dict[str, float]:
    """Train once; return the accuracy on held-out rows, and that of public rows alone."""
    test, start = file_of(name, "test", folder), {}

    def watched(layer, path, because, model, prepared):
        provenance = public_start.start_at_public_rows(layer, path, because, model, prepared)
        if provenance is not None:
            table = read_table(test)
            rows = public_start._as_trained(model.features(table), prepared)
            guessed = (rows @ layer.weight.detach().numpy().T).argmax(1)
            told = zip(guessed, table.column("label"), strict=True)
            start["public only"] = sum(LABELS[one] == other for one, other in told) / len(table)
        return provenance

    training.start_at_public_rows = watched
    request = TrainingRequest(
        data=file_of(name, "train", folder),
        test=test,
        texts=("text",),
        label="label",
        classes=",".join(LABELS),
        examples=len(load_problem(name).train.rows),
        public=public_file(public, folder),
        public_because="published reviews",
        epsilon=epsilon,
        out=Path(tempfile.mkdtemp(dir=folder)) / "model",
    )
    result = training.train_from_table(request, lambda _: None)
    return {"accuracy": result.last("accuracy"), **start}


def table(held: list[dict]) -> str:
    """Return the table in Markdown."""
    lines = [
        "| problem | ε | public texts | public only (ε = 0) | accuracy |",
        "|---|---|---|---|---|",
    ]
    for name, epsilon, public in CASES:
        found = [row for row in held if key_of(row) == (name, epsilon, public)]
        if found:
            values = [row["accuracy"] for row in found]
            alone = f"{found[-1]['public only']:.3f}" if "public only" in found[-1] else "–"
            mean = sum(values) / len(values)
            lines.append(f"| {name} | {epsilon:g} | {public} | {alone} | {mean:.3f} |")
    return "\n".join(lines)


def key_of(row: dict) -> tuple[str, float, str]:
    """Return what tells a case apart."""
    return row["problem"], row["epsilon"], row["public"]


def main() -> None:
    """Make missing runs, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", action="store_true")
    held = json.loads(JSON.read_text(encoding="utf-8")) if JSON.exists() else []
    if parser.parse_args().markdown:
        print(table(held))
        return
    fitted.embeddings_from_texts = _once(fitted.embeddings_from_texts)
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            for _ in range(RUNS - sum(key_of(row) == case for row in held)):
                name, epsilon, public = case
                found = run(*case, Path(folder))
                held.append({"problem": name, "epsilon": epsilon, "public": public, **found})
                JSON.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


def _once(fit):
    """The same texts have the same vectors: they are fitted once per process."""
    known = {}

    def fit_once(texts, **told):
        key = (len(texts), told["source"])
        if key not in known:
            known[key] = fit(texts, **told)
        return known[key]

    return fit_once


if __name__ == "__main__":
    main()
