"""The page that closes the paper says what the rows and the accountants say."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from adadps import Accountant
from adadps_experiments.reproduce import published
from adadps_experiments.reproduce.published import FEDERATED_RUN, RUNS, TOY_RUN

SCRIPTS = Path(__file__).parents[2] / "scripts"
PAPER = Path(__file__).parents[3] / "docs/results/paper.md"
LABELS = {
    "motivation", "moment_estimation", "toy", "with-public-private", "without-public-private",
    "so_fed", "all_methods", "mnist_ae", "compare_PDA-DPMD", "OOD-public-data", "imdb_tf-idf",
    "hyperparameters", "compare_public_pretrain", "compare_dp-adam-pub", "dp-side_non_private",
    "public-data-size",
}  # fmt: skip
"""The labels of all tables and figures of the paper."""


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    published._epsilon.cache_clear()
    return importlib.import_module("paper_page")


@pytest.fixture
def rows(monkeypatch, script):
    """Return the module that finds rows, which reads them anew."""
    found = importlib.import_module("paper_rows")
    found.rows_in.cache_clear()
    return found


def lines_of(table):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def test_the_page_is_what_the_script_makes(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["paper_page.py", "--check"])
    assert script.main() == 0


def test_every_table_and_figure_of_the_paper_has_a_section():
    headings = re.findall(r"^### (.+)$", PAPER.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(headings) == LABELS
    assert len(headings) == len(LABELS)


@pytest.mark.usefixtures("real_accounting")
def test_costs_of_published_settings_are_computed_by_this_package(script):
    """All claims, and what is cheap of the rest; `--budgets` computes everything."""
    held = json.loads((script.RESULTS / "paper.json").read_text())
    assert [row["name"] for row in held] == [run.name for run in RUNS]
    for row, run in zip(held, RUNS, strict=True):
        claimed = run.epsilon(Accountant.RDP, grouped=False)
        assert row["cost"]["published_epsilon_claimed"] == pytest.approx(claimed)
        halved = run.epsilon(Accountant.RDP, grouped=True)
        assert row["cost"]["published_epsilon_if_poisson_by_rdp"] == pytest.approx(halved)
        assert halved > 4 * claimed or run.group == 1
    for row, run in ((held[0], TOY_RUN), (held[-1], FEDERATED_RUN)):
        assert row["cost"] == pytest.approx(run.cost())


@pytest.mark.usefixtures("real_accounting")
@pytest.mark.parametrize(
    ("run", "claimed"),
    list(zip(RUNS, (4.13, 1.5, 2.8, 0.84, 1.6, 3.0, 1.25, 34), strict=True)),
    ids=lambda value: getattr(value, "name", value),
)
def test_the_papers_own_epsilons_come_out(run, claimed):
    assert run.epsilon(Accountant.RDP, grouped=False) == pytest.approx(claimed, rel=0.01)


def test_a_changed_number_and_an_absent_row_are_seen(script, rows, monkeypatch):
    changed = tuple(
        {**row, "mean": 0.1234} if row["method"] == "dp-rmsprop" else row
        for row in rows.rows_in("text")
        if row["method"] != "dp-adam"
    )
    monkeypatch.setattr(rows, "rows_in", lambda folder: changed if folder == "text" else ())
    table = lines_of(script.made(script.TABLES["all_methods"]))
    assert table[3][2:5] == ["0.8345", "–", "0.1234"]
    absent = [line for line in table if line[-1] == script.MISSING]
    assert [line[1] for line in absent] == [
        "ours, the paper's model", "ours, public vectors", "ours, whole data",
        "ours, the paper's kind of model", "ours, wavelet features",
    ]  # fmt: skip


def test_rows_of_networks_are_found_by_their_epsilon(script, rows, monkeypatch):
    def row(epsilon, mean):
        return {
            "experiment": "mnist-ae", "method": "DP-SGD", "epsilon_pld": epsilon, "mean": mean,
        }  # fmt: skip

    monkeypatch.setattr(rows, "rows_in", lambda _: (row(1.5999, 4.3), row(2.9999, 3.2)))
    table = lines_of(script.made(script.TABLES["mnist_ae"]))
    assert [line[2] for line in table[2:]] == ["5.013", "4.300", "3.792", "3.200"]


def test_the_claims_in_words_follow_from_the_rows(rows):
    imdb = rows.text("imdb", "imdb", "paper", 1.5)
    means = {name: imdb(name)["mean"] for name in (
        "dp-sgd", "dp-adam", "dp-rmsprop", "dp-r-pub", "pda-dpmd", "warm-start", "dp-adam-pub",
        "adadps", "adadps-public", "ideal",
    )}  # fmt: skip
    best = max(means[name] for name in ("dp-sgd", "dp-adam", "dp-rmsprop"))
    assert 100 * (means["adadps-public"] - best) == pytest.approx(1.6, abs=0.05)
    assert 100 * (means["adadps-public"] - means["dp-r-pub"]) == pytest.approx(1.7, abs=0.05)
    for name in ("pda-dpmd", "warm-start", "dp-adam-pub", "ideal"):
        assert means["adadps"] > means[name], name
    packages, titles = (
        rows.text("stackoverflow", name, "best for DP-SGD", 0.84)
        for name in ("debian-tags", "so-titles")
    )
    for known, method, points in (
        (packages, "warm-start", 3.8), (packages, "dp-adam-pub", 3.4), (titles, "warm-start", 1.3),
    ):  # fmt: skip
        gain = known(method)["mean"] - known("adadps-public")["mean"]
        assert 100 * gain == pytest.approx(points, abs=0.05)
    ahead = packages("adadps")["mean"] - packages("dp-adam")["mean"]
    assert 100 * ahead == pytest.approx(2.9, abs=0.05)


def test_the_abstracts_average_comes_out(script):
    assert lines_of(script.claim_table())[-1][:2] == ["mean", "+7.7"]
