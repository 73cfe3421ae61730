"""Peak memory of `adadps train` on synthetic tables of two lengths, each in a fresh process.

    python experiments/scripts/table_memory.py --rows 100000 1000000

It prints the largest resident set (resource.getrusage), which counts pages of the row store that
the system may reclaim at any time, and the largest anonymous memory seen, which it may not. Rows
are short texts, a number and a category, drawn with a fixed seed.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

WORDS = 10_000


def write_rows(path: Path, rows: int) -> None:
    from adadps.estimators.text import public_vocabulary

    rng, words = random.Random(0), public_vocabulary(WORDS)
    with path.open("w", encoding="utf-8") as file:
        file.write("text,age,kind,label\n")
        for _ in range(rows):
            text = " ".join(rng.choices(words, k=12))
            label = "yes" if "a" in text[:3] else "no"
            file.write(f"{text},{rng.randint(18, 99)},{rng.choice('abc')},{label}\n")


def train(path: Path, features: str) -> None:
    """Train in the child process, and print the memory it took."""
    from adadps.estimators.tables.request import TrainingRequest
    from adadps.estimators.tables.training import train_from_table
    from adadps.types import TextFeatures

    anonymous = [0]
    threading.Thread(target=_watch, args=(anonymous,), daemon=True).start()
    begin = time.monotonic()
    request = TrainingRequest(
        data=path,
        texts=("text",),
        numeric=("age=18,99",),
        categorical=("kind=a,b,c",),
        label="label",
        classes="yes,no",
        epsilon=1.0,
        features=TextFeatures(features),
        out=path.with_suffix(".model"),
    )
    train_from_table(request, lambda _: None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"peak_mb": round(peak), "anonymous_mb": round(anonymous[0] / 1024)}
    print(json.dumps(found | {"seconds": round(time.monotonic() - begin)}))


def _watch(largest: list[int]) -> None:
    while True:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("RssAnon:"):
                largest[0] = max(largest[0], int(line.split()[1]))
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--features", default="auto")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train is not None:
        train(given.train, given.features)
        return
    for rows in given.rows:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            table = Path(folder) / "rows.csv"
            write_rows(table, rows)
            size = table.stat().st_size / 2**20
            child = [sys.executable, __file__, "--train", str(table), "--features", given.features]
            shown = subprocess.run(child, check=True, capture_output=True, text=True).stdout
            print(f"{rows:>9,} rows ({size:.0f} MB): {shown.strip()}", flush=True)


if __name__ == "__main__":
    main()
