"""Reports of runs and comparisons: what they show, and what they warn about."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from adadps import adadps, dp_adam, dp_sgd, load_result, on_held_out, public_examples, stages
from adadps.cli.main import app
from adadps.errors import DataError
from adadps.methods import adadps_public, dp_sgd_weighted, plain_sgd
from adadps.methods.side.public import RMSPropStatistics
from adadps.report.html import report_of_comparison, report_of_run
from adadps.report.html.comparison import differences
from adadps.report.html.reports import (
    MOST_POINTS,
    curves,
    noise_facts,
    noise_section,
    spending,
    spread_section,
)
from adadps.training.evaluation import accuracy
from support.small_runs import (
    FEATURES,
    KNOWN,
    LABELS,
    before_the_clip,
    noisy_words,
    privacy,
    trained,
    two_sided,
    words,
)

runner = CliRunner()


@pytest.fixture(scope="module")
def runs():
    torch.manual_seed(0)
    return {
        "DP-SGD": trained(),
        "AdaDPS": trained(before_the_clip()),
        "plain": trained(plain_sgd(0.1)),
    }


# --- what a result records for it ---


def test_public_facts_of_a_run():
    facts = trained(before_the_clip()).public_facts
    assert facts["made_with"].startswith("adadps ")
    assert (facts["parameters"], facts["expected_units"], facts["update"]) == (15, 6.0, "sgd")
    assert facts["learning_rates"] == {
        "first": 0.5,
        "last": 0.5,
        "total": 4.0,
        "root_of_squares": pytest.approx(0.5 * math.sqrt(8)),
    }
    (known,) = facts["preconditioners"]
    assert (known["place"], known["entries"], known["price"]) == ("before the clip", 5, None)
    assert known["ranks"] == [1, 2, 3, 4, 5]
    assert known["relative"] == [max(one, 0.01) for one in KNOWN]
    assert facts["noise_scale"] == {"typical": 1.0, "largest": 1.0}


def test_learning_rates_of_a_schedule_are_added_up():
    method = dp_sgd(privacy(), lr=stages.inverse_sqrt(1.0))
    rates = trained(method, steps=4).public_facts["learning_rates"]
    assert (rates["first"], rates["last"]) == (1.0, 0.5)
    assert rates["total"] == pytest.approx(sum(t**-0.5 for t in (1, 2, 3, 4)))
    assert rates["root_of_squares"] == pytest.approx(math.sqrt(1 + 1 / 2 + 1 / 3 + 1 / 4))


def test_side_information_on_both_sides_scales_the_noise():
    facts = trained(two_sided()).public_facts
    inverse = [1 / max(one, 0.01) for one in KNOWN]
    assert [known["place"] for known in facts["preconditioners"]] == [
        *("before the clip", "after the noise"),
    ]
    root_mean_square = math.sqrt(sum(one * one for one in inverse) / 5)
    assert facts["noise_scale"]["typical"] == pytest.approx(root_mean_square)
    assert facts["noise_scale"]["largest"] == pytest.approx(100.0)


def test_weights_of_features_are_a_spread_too():
    (known,) = trained(dp_sgd_weighted(words(), privacy(), lr=0.5)).public_facts["preconditioners"]
    assert known["place"] == "in the features"
    assert known["relative"] == pytest.approx([max(one, 0.01) for one in KNOWN], rel=1e-5)


def test_measured_side_information_is_shown_with_its_price():
    (known,) = trained(adadps(noisy_words(), privacy(), lr=0.5)).public_facts["preconditioners"]
    assert "noise multiplier 9" in known["price"]


def test_side_information_that_changes_is_not_shown():
    held = public_examples(
        FEATURES, LABELS, source="a book", public_because="printed", batch_size=10
    )
    statistics = RMSPropStatistics(decay=0.9, epsilon=0.1)
    result = trained(adadps_public(held, statistics, privacy(), lr=0.5), steps=2)
    assert result.public_facts["preconditioners"] == []
    assert "No spread" in spread_section({"a": result}).texts[0]


def test_a_large_spread_is_kept_in_few_numbers():
    known = {"weight": torch.linspace(1.0, 0.001, 3000).reshape(3, 1000)}
    wide = adadps(words_of(known), privacy(), lr=0.5)
    result = trained_wide(wide)
    (kept,) = result.public_facts["preconditioners"]
    assert len(kept["ranks"]) <= 40
    assert (kept["ranks"][0], kept["ranks"][-1]) == (1, 3000)
    assert (kept["relative"][0], kept["relative"][-1]) == (1.0, 0.001)


def words_of(named):
    from adadps.methods.side import fixed

    return fixed(named, source="a book", public_because="printed")


def trained_wide(method):
    from adadps import examples, fit, poisson
    from adadps.engine.losses import cross_entropy

    return fit(
        nn.Linear(1000, 3, bias=False),
        cross_entropy,
        examples(torch.rand(60, 1000), LABELS),
        method=method,
        sampler=poisson(examples=60, expected_size=6),
        steps=2,
    )


# --- noise ---


def test_noise_against_the_step_by_hand():
    """lr 0.5, σ 4, C 0.5, b 6, d 15, T 8."""
    found = noise_facts(trained(before_the_clip()))
    assert found.each == pytest.approx(0.5 * 4 * 0.5 / 6)
    assert found.together == pytest.approx(found.each * math.sqrt(15))
    assert found.most == pytest.approx(0.25)
    assert found.together_all_steps == pytest.approx(found.together * math.sqrt(8))
    assert found.most_all_steps == pytest.approx(8 * 0.25)
    assert found.ratio == pytest.approx(4 * math.sqrt(15) / 6 / math.sqrt(8))


def test_noise_on_the_weights_is_what_the_facts_say():
    """With gradients of zero, weights are noise alone: 300 of them, 10 runs, 12 standard errors."""
    squares = []
    for _ in range(10):
        method = dp_sgd(privacy(), lr=0.5)
        held = trained_on_nothing(method)
        squares.append(held.params["weight"].double().square().sum())
    expected = noise_facts(held).together_all_steps ** 2
    mean = float(torch.stack(squares).mean())
    assert abs(mean / expected - 1) < 12 * math.sqrt(2 / (300 * 10))  # below 1e-6 by Bernstein


def trained_on_nothing(method):
    from adadps import Accountant, examples, fit, poisson

    model = nn.Linear(5, 60, bias=False)
    nn.init.zeros_(model.weight)
    return fit(
        model,
        lambda outputs, _: outputs.sum(1) * 0,
        examples(FEATURES, LABELS),
        method=method,
        sampler=poisson(examples=60, expected_size=6),
        steps=8,
        accountant=Accountant.RDP,
    )


def test_an_adaptive_update_is_described_before_it(runs):
    adam = trained(dp_adam(privacy(), lr=0.1))
    assert noise_facts(adam).each == pytest.approx(4 * 0.5 / 6)
    section = noise_section({"DP-Adam": adam, **runs})
    assert any("DP-Adam: lengths before the update" in point for point in section.points)
    assert any("No row: plain" in point for point in section.points)
    assert [row[0] for row in section.table.rows] == ["DP-Adam", "DP-SGD", "AdaDPS"]


def test_results_of_earlier_versions_have_no_noise_and_no_spread(runs):
    old = {"old": dataclasses.replace(runs["AdaDPS"], public_facts={})}
    assert noise_facts(old["old"]) is None
    assert noise_section(old).table is None
    assert spread_section(old).charts == ()


# --- curves ---


def test_curves_by_steps_and_by_epsilon(runs):
    by_steps, by_epsilon = curves(runs)
    assert [line.label for line in by_steps.lines] == ["DP-SGD", "AdaDPS", "plain"]
    assert by_steps.lines[0].x == [2, 4, 6, 8]
    assert [line.label for line in by_epsilon.lines] == ["DP-SGD", "AdaDPS"]
    assert "plain" in by_epsilon.note
    assert by_epsilon.lines[0].y == by_steps.lines[0].y
    assert by_epsilon.lines[0].x[-1] == runs["DP-SGD"].privacy.epsilon
    assert by_epsilon.lines[0].x == sorted(by_epsilon.lines[0].x)


def test_the_same_run_looks_the_same_in_all_charts(runs):
    styles = [
        {line.label: line.style for line in chart.lines}
        for chart in (*curves(runs), *spread_section(runs).charts)
    ]
    for label in runs:
        assert len({held[label] for held in styles if label in held}) == 1


def test_long_curves_against_epsilon_are_thinned_but_for_their_ends():
    evaluate = [on_held_out("the test", FEATURES, LABELS, every=1, accuracy=accuracy)]
    result = trained(steps=30, evaluate=evaluate)
    by_steps, by_epsilon = curves({"a": result})
    assert len(by_steps.lines[0].x) == 30
    assert len(by_epsilon.lines[0].x) == MOST_POINTS
    assert by_epsilon.lines[0].y[0] == by_steps.lines[0].y[0]
    assert by_epsilon.lines[0].y[-1] == by_steps.lines[0].y[-1]


def test_what_was_measured_once_is_no_curve():
    once = trained(evaluate=[on_held_out("the test", FEATURES, LABELS, accuracy=accuracy)])
    assert curves({"a": once}) == []


def test_spending_grows_to_epsilon(runs):
    (line,) = spending({"a": runs["AdaDPS"]}).lines
    assert line.y == sorted(line.y)
    assert line.y[-1] == runs["AdaDPS"].privacy.epsilon
    assert spending({"plain": runs["plain"]}) is None


# --- pages ---


def test_the_report_of_a_run(runs, tmp_path):
    path = report_of_run(runs["AdaDPS"], tmp_path / "run.html", title="My run")
    html = path.read_text(encoding="utf-8")
    headings = re.findall("<h2>(.*?)</h2>", html)
    assert headings == [
        "Accuracy and other metrics",
        "Side information",
        "Noise against the step",
        "Privacy card",
    ]
    assert "<h1>My run</h1>" in html
    assert html.count("<figure>") == 4
    assert "the test (held out)" in html
    assert "printed" in html


def test_hazard_24_the_report_of_a_run_without_privacy(runs, tmp_path):
    html = report_of_run(runs["plain"], tmp_path / "run.html").read_text(encoding="utf-8")
    assert '<p class="guarantee none">NOT PRIVATE: ε = ∞</p>' in html
    assert "adds no noise" in html
    assert "by ε spent" not in html


def test_the_report_of_a_comparison(runs, tmp_path):
    path = report_of_comparison(
        runs,
        tmp_path / "all.html",
        columns={"seconds": {"AdaDPS": "7"}},
        highlight="AdaDPS",
        notes=["A note."],
    )
    html = path.read_text(encoding="utf-8")
    assert "Methods at equal ε" in html
    assert 'class="warning"' not in html
    assert "∞ (not private)" in html
    assert html.count("<details>") == 3
    assert "for each of 2 private runs; 1 more without privacy" in html
    assert "draws a given conclusion from one of these models" in html
    assert "their costs add up" in html
    assert re.search('<tr class="highlight"><th scope="row">AdaDPS</th>.*<td>7</td></tr>', html)


def test_runs_at_different_epsilon_or_delta_are_not_equals(runs, tmp_path):
    others = {
        "more": trained(dp_sgd(privacy(2.0), lr=0.5)),
        "delta": trained(delta=1e-4),
    }
    for name, other in others.items():
        both = {"DP-SGD": runs["DP-SGD"], name: other}
        html = report_of_comparison(both, tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert "not a fair comparison" in html
        assert "equal ε" not in html
        assert '<p class="guarantee none">2 private runs with different guarantees' in html
    assert differences(runs) == []


def test_other_relations_and_units_are_said(runs):
    one = runs["DP-SGD"]
    other = dataclasses.replace(
        one, privacy=dataclasses.replace(one.privacy, relation="replace one", unit="user")
    )
    found = differences({"a": one, "b": other})
    assert [("relation" in text, "unit" in text) for text in found] == [
        (True, False),
        (False, True),
    ]


def test_one_run_is_no_comparison(runs, tmp_path):
    with pytest.raises(DataError, match="at least two runs"):
        report_of_comparison({"a": runs["plain"]}, tmp_path / "one.html")
    assert list(tmp_path.iterdir()) == []


def test_runs_without_any_privacy(runs, tmp_path):
    bare = {"a": runs["plain"], "b": runs["plain"]}
    html = report_of_comparison(bare, tmp_path / "bare.html").read_text(encoding="utf-8")
    assert "NOT PRIVATE: ε = ∞ for every run" in html


# --- the command ---


@pytest.fixture(scope="module")
def folders(runs, tmp_path_factory):
    place = tmp_path_factory.mktemp("saved")
    return {name: result.save(place / name) for name, result in runs.items()}


def report(*args):
    return runner.invoke(app, ["report", *map(str, args)])


def test_a_saved_model_makes_the_same_report(runs, folders, tmp_path):
    shown = report(folders["AdaDPS"], "--out", tmp_path / "a.html")
    assert shown.exit_code == 0, shown.output
    expected = report_of_run(runs["AdaDPS"], tmp_path / "b.html", title="AdaDPS")
    assert (tmp_path / "a.html").read_bytes() == expected.read_bytes()


def test_several_saved_models_are_compared(folders, tmp_path):
    shown = report(*folders.values(), "--out", tmp_path / "a.html", "--title", "All of them")
    assert (shown.exit_code, shown.stderr) == (0, "")
    html = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<h1>All of them</h1>" in html
    for name in folders:
        assert f'<th scope="row">{name}</th>' in html


def test_json_tells_what_was_written_and_of_what(folders, tmp_path):
    other = trained(dp_sgd(privacy(2.0), lr=0.5)).save(tmp_path / "other")
    file = tmp_path / "a.html"
    shown = report(folders["DP-SGD"], other, "--out", file, "--json")
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    assert told["report"] == str(file)
    assert told["title"] == "Comparison of 2 runs"
    assert told["models"] == {"DP-SGD": str(folders["DP-SGD"]), "other": str(other)}
    assert told["audited"] == []
    assert any("not a fair comparison" in warning for warning in told["warnings"])
    alone = report(folders["DP-SGD"], "--out", tmp_path / "b.html", "--json")
    assert json.loads(alone.stdout)["warnings"] == []


def test_the_command_says_what_is_not_equal(folders, tmp_path):
    other = trained(dp_sgd(privacy(2.0), lr=0.5)).save(tmp_path / "other")
    shown = report(folders["DP-SGD"], other, "--out", tmp_path / "a.html")
    assert shown.exit_code == 0
    assert "not a fair comparison" in " ".join(shown.stderr.split())


def test_folders_of_one_name_are_told_apart(folders, tmp_path):
    twin = load_result(folders["AdaDPS"]).save(tmp_path / "AdaDPS")
    shown = report(folders["AdaDPS"], twin, twin, "--out", tmp_path / "a.html")
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "a.html").read_text(encoding="utf-8").count("<details>") == 3


def test_a_file_that_is_there_is_kept_without_force(folders, tmp_path):
    file = tmp_path / "a.html"
    file.write_text("precious", encoding="utf-8")
    assert report(folders["plain"], "--out", file).exit_code == 1
    assert file.read_text(encoding="utf-8") == "precious"
    assert report(folders["plain"], "--out", file, "--force").exit_code == 0


def test_a_damaged_folder_makes_no_report(folders, tmp_path):
    shown = report(folders["plain"], tmp_path / "nowhere", "--out", tmp_path / "a.html")
    assert shown.exit_code == 1
    assert "result.json,foundnosuchfolder" in "".join(shown.stderr.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("before the clip", "Before the clip, every example"),
        ("after the noise", "After the noise, the released"),
        ("in the features", "In the features, feature j"),
    ],
)
def test_the_report_explains_the_door_that_was_used(place, said):
    known = {"place": place, "source": "a list", "price": None, "entries": 2,
             "ranks": [1, 2], "relative": [1.0, 0.5]}  # fmt: skip
    told = spread_section({"a run": SimpleNamespace(public_facts={"preconditioners": [known]})})
    assert told.texts[0].startswith(said)
    assert sum(other in told.texts[0] for other in ("Before the", "After the", "In the fea")) == 1
