"""Audits of the library itself: every method on every path, and any model with canaries.

An audit at confidence 1 - 1e-6 calls an intact run broken once in a million times.
"""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn
from typer.testing import CliRunner

from adadps import (
    PrivateRun,
    Relation,
    dp_sgd,
    examples,
    fixed_size,
    poisson,
    privatize,
    shuffled,
    side,
)
from adadps.audit import (
    AuditResult,
    PrivacyClaim,
    Released,
    audit_one_run,
    audit_repeated,
    built_in,
    given_canaries,
    observers_along,
    own_feature_canaries,
    trainer_of,
)
from adadps.audit.built_in import (
    FOLLOWING,
    METHODS,
    NEED_RULES,
    NEVER_LATE,
    PATHS,
    CanarySettings,
    RepeatedSettings,
    usual_steps,
)
from adadps.audit.canaries import joined
from adadps.audit.outcome import CONSISTENT
from adadps.audit.worst_case import WIDTH, pull, worst_case, zero_linear
from adadps.cli.main import app
from adadps.engine.general import GeneralEngine
from adadps.engine.ghost import GhostEngine
from adadps.engine.losses import squared_error
from adadps.engine.noise import late
from adadps.engine.noise.late_parameter import LateParameter
from adadps.errors import ContractError, DataError, SettingError
from adadps.methods import dp_sgd_weighted, plain_sgd
from museum.broken_parts import NoNoise
from museum.late_exhibits import NeverDrawn
from support.problems import cross_entropy

ROOT = Path(__file__).parents[2]
SURE = 1 - 1e-6
SETTING = {"epsilon": 1.0, "delta": 0.1, "rate": 1.0}
pytestmark = pytest.mark.usefixtures("checked_once")
PAIRS = [
    (m, p)
    for m in METHODS
    for p in PATHS
    if not (m in NEVER_LATE and p == "late") and not (m in NEED_RULES and p == "general")
]


def privacy(sigma=1.0):
    return privatize(clip_norm=1.0, noise_multiplier=sigma)


# --- repeated runs ---


@pytest.mark.parametrize(
    ("path", "engine", "waits"),
    [
        ("dense", GhostEngine, False),
        ("general", GeneralEngine, False),
        ("sparse", GhostEngine, False),
        ("late", GhostEngine, True),
    ],
)
def test_a_path_goes_through_the_engine_it_names(path, engine, waits):
    held = PATHS[path]
    model = held.make_model(WIDTH)
    run = PrivateRun(
        model,
        squared_error,
        worst_case(Relation.ADD_OR_REMOVE_ONE, as_sparse=held.as_sparse).with_example,
        method=dp_sgd(privacy(), lr=0.1),
        sampler=poisson(examples=2, expected_size=2),
        steps=2,
        delta=0.1,
    )
    run.step(next(run.batches()))
    assert type(run.objective.engine) is engine
    assert (type(model.weight) is LateParameter) is waits is held.late_noise


def repeated(method, path, **changed):
    asked = {**SETTING, "steps": usual_steps(path, method), **changed}
    return RepeatedSettings(method=method, path=path, **asked)


@pytest.mark.parametrize(("method", "path"), PAIRS)
def test_every_method_passes_on_every_path(method, path):
    """80 runs can refute a claim of 0.25, and not much more."""
    found = repeated(method, path, epsilon=0.25).audit(runs=80, confidence=SURE)
    assert found.claim.epsilon == pytest.approx(0.25, abs=0.01)
    assert found.verdict == CONSISTENT, found.describe()


@pytest.mark.parametrize("path", PATHS)
def test_no_noise_is_seen_on_every_path(path, monkeypatch):
    without = {"dp-sgd": lambda stage, *_: dp_sgd(_silent(stage), lr=0.5)}
    monkeypatch.setattr(built_in, "METHODS", without)
    steps = 2 if PATHS[path].late_noise else 1
    found = repeated("dp-sgd", path, steps=steps).audit(runs=250, confidence=SURE)
    assert found.broken, found.describe()


LATE_METHODS = [method for method, path in PAIRS if path == "late"]


def test_noise_that_waits_in_vain_is_seen_by_repeated_runs(monkeypatch):
    monkeypatch.setattr(late, "_StepHistory", NeverDrawn)
    found = repeated("dp-sgd", "late", steps=3).audit(runs=250, confidence=SURE)
    assert found.broken, found.describe()


@pytest.mark.parametrize("method", LATE_METHODS)
def test_on_the_late_path_noise_waits_for_all_steps(method, monkeypatch):
    """Otherwise an audit of it would not test pending noise."""
    waits = []

    class Watched(late._StepHistory):
        def gathered(self, since):
            waits.append(self.now - since.min())
            return super().gathered(since)

    monkeypatch.setattr(late, "_StepHistory", Watched)
    repeated(method, "late").audit(runs=16, confidence=0.9)
    if method in FOLLOWING:  # where C falls, the grid gets finer, at which all noise is drawn
        assert max(waits) > 1
    else:
        assert waits.count(PATHS["late"].steps) >= 16
    waits.clear()
    canaries(method, "late").audit(confidence=0.9)
    assert max(waits) > 1 if method in FOLLOWING else max(waits) == PATHS["late"].steps


def test_one_step_of_the_late_path_is_refused():
    with pytest.raises(SettingError, match="several steps"):
        repeated("dp-sgd", "late", steps=1)


def _silent(stage):
    return NoNoise(stage.clip_norm, stage.noise_multiplier, stage.groups)


@pytest.mark.parametrize(
    "sampler",
    [
        fixed_size(examples=2, expected_size=2),
        shuffled(examples=2, expected_size=2),
        shuffled(examples=2, expected_size=2, relation=Relation.REPLACE_ONE),
        poisson(examples=2, expected_size=2, relation=Relation.REPLACE_ONE),
        poisson(examples=2, expected_size=2, relation=Relation.ZERO_OUT),
    ],
    ids=lambda sampler: f"{sampler.sampling.value}, {sampler.relation.value}",
)
@pytest.mark.parametrize("stage", [privacy(4.0), NoNoise(1.0, 4.0, None)], ids=["intact", "broken"])
def test_the_relation_that_is_audited_is_the_one_that_is_claimed(sampler, stage):
    trainer = trainer_of(
        zero_linear,
        squared_error,
        method=dp_sgd(stage, lr=0.5),
        sampler=sampler,
        steps=1,
        delta=0.3,
    )
    found = audit_repeated(
        trainer,
        worst_case(sampler.relation),
        observers=observers_along(pull()),
        runs=250,
        confidence=SURE,
        progress=False,
    )
    assert found.claim.relation == sampler.relation.value
    assert found.broken is isinstance(stage, NoNoise), found.describe()


def test_a_claim_that_depends_on_the_data_is_refused():
    claims = iter(range(1, 99))

    def train(_data):
        return Released(
            PrivacyClaim(float(next(claims)), 0.1, "add or remove one"), np.zeros((2, WIDTH))
        )

    with pytest.raises(ContractError, match="same claim"):
        audit_repeated(
            train,
            worst_case(Relation.ADD_OR_REMOVE_ONE),
            observers=observers_along(pull()),
            runs=20,
            confidence=0.9,
        )


@pytest.mark.parametrize("runs", [0, 15])
def test_too_few_runs_are_refused(runs):
    with pytest.raises(SettingError, match="at least 16 runs"):
        repeated("dp-sgd", "dense").audit(runs=runs, confidence=0.9)


def test_a_released_number_that_is_none_is_a_score_like_any_other():
    claim = PrivacyClaim(1.0, 0.1, "add or remove one")
    seen = iter([np.nan, 0.0] * 500)
    found = audit_repeated(
        lambda _data: Released(claim, np.full((2, 1), next(seen))),
        worst_case(Relation.ADD_OR_REMOVE_ONE),
        observers={"last": lambda released: float(np.isnan(released.weights[-1, 0]))},
        runs=1000,
        confidence=0.95,
        progress=False,
    )
    assert found.broken


# --- one run ---


def base(as_sparse=False, size=40):
    rows = torch.rand(size, 3)
    return examples(sparse.csr_matrix(rows.numpy()) if as_sparse else rows, torch.rand(size))


def one_run(stage, sampler, *, count=300, as_sparse=False, method=None, delta=1e-12):
    data, canaries = own_feature_canaries(base(as_sparse), count=count, target=100.0)
    return audit_one_run(
        zero_linear(3 + count),
        squared_error,
        data,
        canaries=canaries,
        method=method or dp_sgd(stage, lr=0.1),
        sampler=sampler,
        steps=1,
        delta=delta,
        confidence=SURE,
        progress=False,
    )


SAMPLERS = {
    "poisson": poisson(examples=340, expected_size=340),
    "zeroed out": shuffled(examples=340, expected_size=340),
    "replaced": fixed_size(examples=340, expected_size=340),
}


@pytest.mark.parametrize("as_sparse", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_canaries_catch_a_run_without_noise_and_pass_an_intact_one(sampler, as_sparse):
    """All of 300 coins right give ε ≥ 2.8; σ = 8 claims less than that under every relation."""
    intact = one_run(privacy(8.0), sampler, as_sparse=as_sparse)
    broken = one_run(NoNoise(1.0, 8.0, None), sampler, as_sparse=as_sparse)
    assert intact.verdict == CONSISTENT, intact.describe()
    assert broken.broken, broken.describe()
    assert intact.claim == broken.claim
    assert intact.claim.relation == sampler.relation.value


@pytest.mark.parametrize(("method", "path"), PAIRS)
def test_one_run_passes_for_every_method_on_every_path(method, path):
    found = canaries(method, path).audit(confidence=SURE)
    assert found.verdict == CONSISTENT, found.describe()


def canaries(method, path):
    asked = {**SETTING, "steps": usual_steps(path, method), "delta": 1e-12}
    return CanarySettings(method=method, path=path, canaries=100, **asked)


def test_nothing_is_claimed_for_a_run_that_is_not_private():
    found = one_run(None, SAMPLERS["poisson"], method=plain_sgd(0.1))
    assert found.lower_bound > 2
    assert not found.broken
    assert found.describe()["claimed_epsilon"] is None
    json.dumps(found.describe(), allow_nan=False)


def test_canaries_work_through_feature_weights():
    """Rows are weighted and normalised before the model sees them."""
    width = 3 + 300
    given = side.given_frequencies(torch.linspace(1, 2, width), source="s", public_because="p")
    weighted = dp_sgd_weighted(side.frequency(given, floor=0.1), NoNoise(1.0, 8.0, None), lr=0.1)
    assert one_run(None, SAMPLERS["poisson"], method=weighted).broken


def test_mislabelled_examples_are_canaries_for_any_model():
    """A perceptron that learns without noise remembers labels that nothing explains."""
    torch.manual_seed(0)
    canaries = given_canaries(examples(torch.randn(300, 400), torch.randint(2, (300,))))
    model = nn.Sequential(nn.Linear(400, 16), nn.Tanh(), nn.Linear(16, 2))
    found = audit_one_run(
        model,
        cross_entropy,
        examples(torch.randn(40, 400), torch.randint(2, (40,))),
        canaries=canaries,
        method=dp_sgd(NoNoise(1.0, 8.0, None), lr=30.0),
        sampler=poisson(examples=340, expected_size=340),
        steps=10,
        delta=1e-9,
        confidence=0.99,
        progress=False,
    )
    assert found.lower_bound > 1, found.describe()


def test_samplers_that_rest_on_the_number_need_a_blank_row():
    data, canaries = own_feature_canaries(base(), count=10, target=1.0)
    with pytest.raises(ContractError, match="blank row"):
        audit_one_run(
            zero_linear(13),
            squared_error,
            data,
            canaries=replace(canaries, blank=None),
            method=dp_sgd(privacy(), lr=0.1),
            sampler=shuffled(examples=50, expected_size=50),
            steps=1,
            confidence=0.9,
        )


def test_canaries_of_another_kind_are_refused():
    with pytest.raises(DataError, match="same kind and width"):
        joined(base(), base(as_sparse=True))
    with pytest.raises(DataError, match="one row per example"):
        own_feature_canaries(examples(torch.rand(2, 3, 4), torch.rand(2)), count=1, target=1.0)


def test_a_canary_owns_its_feature_in_dense_and_sparse_rows():
    for as_sparse in (False, True):
        data, canaries = own_feature_canaries(base(as_sparse), count=4, target=9.0)
        together = joined(data, canaries.examples)
        rows = together.features.to_dense() if as_sparse else together.features
        assert torch.equal(rows[40:, 3:], torch.eye(4))
        assert not rows[:40, 3:].any()
        assert not rows[40:, :3].any()
        assert torch.equal(together.targets[40:], torch.full((4,), 9.0))


# --- the command ---

runner = CliRunner()


def test_the_command_prints_json_that_says_all():
    asked = ["audit", "repeated", "--method", "adadps", "--path", "late", "--runs", "40", "--json"]
    done = runner.invoke(app, asked)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["verdict"] == "consistent"
    assert found["runs"] == 40
    assert found["settings"]["path"] == "late"
    assert {"claimed_epsilon", "delta", "relation", "lower_bound", "confidence"} <= found.keys()


def test_the_command_shows_a_table():
    done = runner.invoke(app, ["audit", "canaries", "--canaries", "50"])
    assert done.exit_code == 0, done.output
    assert "lower bound" in done.stdout
    assert "inconclusive" in done.stdout  # fifty coins cannot refute ε = 4


def test_the_command_fails_if_the_bound_is_above_the_claim(monkeypatch):
    without = {"dp-sgd": lambda stage, *_: dp_sgd(_silent(stage), lr=0.5)}
    monkeypatch.setattr(built_in, "METHODS", without)
    done = runner.invoke(app, ["audit", "repeated", "--runs", "300"])
    assert done.exit_code == 3, done.output
    assert "BROKEN" in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        ["repeated", "--method", "sgd"],
        ["repeated", "--path", "warm"],
        ["repeated", "--method", "dp-adam", "--path", "late"],
        ["repeated", "--path", "late", "--steps", "1"],
        ["repeated", "--runs", "3"],
        ["repeated", "--rate", "0"],
        ["repeated", "--confidence", "1"],
        ["repeated", "--delta", "2"],
        ["repeated", "--steps", "0"],
        ["canaries", "--canaries", "0"],
        ["canaries", "--epsilon", "-1"],
    ],
    ids=" ".join,
)
def test_the_command_refuses_what_makes_no_sense(wrong):
    done = runner.invoke(app, ["audit", *wrong])
    assert done.exit_code == 2, done.output
    assert "Expected" in done.stderr


def test_a_result_says_broken_only_above_the_claim():
    held = AuditResult("one run", PrivacyClaim(1.0, 0.1, "r"), 1.0, 2.0, 0.9, 1, 1, 1, 1)
    assert not held.broken
    assert held.verdict == CONSISTENT
    assert replace(held, lower_bound=1.001).broken


def test_a_result_is_inconclusive_about_a_claim_that_it_could_not_refute():
    held = AuditResult("one run", PrivacyClaim(2.0, 0.1, "r"), 1.0, 2.0, 0.9, 1, 1, 1, 1)
    assert not held.could_refute
    assert held.verdict.startswith("inconclusive")
    assert replace(held, largest_bound=2.001).verdict == CONSISTENT


# --- the published table ---


def test_the_page_shows_the_rows_of_its_file(monkeypatch):
    """In the published tables every broken trainer is above its claim, and the library never is."""
    monkeypatch.syspath_prepend(str(ROOT / "experiments/scripts"))
    table = importlib.import_module("audit_table")
    rows = json.loads(table.JSON.read_text(encoding="utf-8"))
    assert {tuple(row["row"]) for row in rows} == {name for name, _ in table.jobs()}
    page = table.JSON.with_suffix(".md").read_text(encoding="utf-8")
    for part in table.tables(rows):
        assert part in page
    for row in rows:
        assert row["largest_bound"] > row["claimed_epsilon"], row
        assert row["verdict"].startswith("BROKEN") is (row["row"][2] == "broken"), row
        assert row["row"][2] != "late" or row["settings"]["steps"] >= 8, row
