"""The federated comparison as tables and as the figure of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from adadps_experiments.plots import Panel, curves_of, draw
from adadps_experiments.reproduce.federated_data import FEATURES
from adadps_experiments.reproduce.federated_runs import SCENES
from adadps_experiments.reproduce.federated_table import LABELS, label_of
from adadps_experiments.reproduce.keeping import Record
from adadps_experiments.reproduce.rows import Row

COLUMNS = {
    "method": "method",
    "mean": "mean",
    "std": "std",
    "ε (PLD)": "epsilon_pld",
    "ε (RDP)": "epsilon_rdp",
    "δ": "delta",
}


def tables_of(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """A title and its rows, for each scene and kind of features."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        held = row["settings"]
        title = (
            f"{row['dataset']} by user, {held['scene']} ({held['users']:,}), {held['cohort']} a "
            f"round, {held['rounds']} rounds: test accuracy, user-level ε\n{held['features']}"
        )
        found.setdefault(title, []).append(row)
    return list(found.items())


def figure_of(records: Mapping[tuple[str, str, str], Sequence[Record]]) -> bytes:
    """Accuracy against rounds, one panel a scene and kind of features, as PNG."""
    panels = []
    for features in FEATURES:
        for name, scene in SCENES.items():
            curves = []
            for method in LABELS:
                mine = [record["curve"] for record in records.get((name, features, method), ())]
                label = label_of(method, scene)
                if mine and label:
                    rounds = [step for step, _ in mine[0]]
                    values = [[value for _, value in curve] for curve in mine]
                    curves.append(curves_of(label, rounds, values))
            if curves:
                panels.append(Panel(f"{name}, {features}", "rounds", "test accuracy", curves))
    return draw(panels, "png", columns=min(3, len(panels)))
