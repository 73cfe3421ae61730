"""Draw the README's figure from the kept runs of `adadps reproduce imdb`.

python experiments/scripts/headline_figure.py
"""

from pathlib import Path

from adadps_experiments.reproduce.records import RecordFile
from adadps_experiments.reproduce.results import read_winners
from adadps_experiments.reproduce.text.experiments import BEST, EXPERIMENTS, PAPER
from adadps_experiments.reproduce.text.tables import figure_of

FOLDER = Path(__file__).parents[2] / "docs/results/text"
SHOWN = (
    "dp-sgd",
    "dp-adam",
    "adadps",
    "adadps-two-sided",
    "dp-sgd-weighted",
    "adadps-public",
    "adam",
    "sgd",
    "adas",
)

if __name__ == "__main__":
    lines = [
        line
        for line in EXPERIMENTS["imdb"].lines
        if line.dataset == "imdb"
        and line.features in (PAPER, BEST)
        and line.method in SHOWN
        and line.epsilon == 1.5
    ]
    picture = figure_of(lines, 3, read_winners(None), RecordFile(FOLDER / "runs.jsonl"))
    (FOLDER / "headline.png").write_bytes(picture)
