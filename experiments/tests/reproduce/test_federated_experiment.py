"""`adadps reproduce federated`: the same chance for every method, and the epsilon of the paper."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from adadps import Accountant, by_user, dp_sgd, epsilon_of_run, poisson, privatize
from adadps_experiments.reproduce.federated import (
    jobs as federated_jobs,
)
from adadps_experiments.reproduce.federated import (
    table as federated_table,
)
from adadps_experiments.reproduce.federated.data import DATASET, federation, held_out_within
from adadps_experiments.reproduce.federated.jobs import PUBLISHED, SCENARIOS, FederatedJob, run
from adadps_experiments.reproduce.federated.table import LABELS, lines, settings_of, trials_of
from adadps_experiments.reproduce.text.corpora import corpus


def test_every_method_has_twenty_trials_of_three_runs():
    for scene in SCENARIOS.values():
        for method in LABELS:
            settings = settings_of(method, scene)
            assert len(settings) == 20
            assert len({json.dumps(setting) for setting in settings}) == 20
    for line in lines():
        for setting, jobs in trials_of(*line):
            assert {(job.setting == setting, job.tuning) for job in jobs} == {(True, True)}
            assert len({job.seed for job in jobs}) == 3


def test_everybody_trains_and_nobodys_test_packages_are_read_while_tuning():
    """There are 2,009 maintainers; packages of one source are in one part."""
    whole, tuned = (federation(DATASET, None, "paper", tuning) for tuning in (False, True))
    assert whole.users == tuned.users == 2009
    for made in (whole, tuned):
        assert len(torch.unique(made.train.users)) == 2009
    assert len(tuned.train) + len(tuned.test) == len(whole.train)
    texts = {name: _rows(part) for name, part in (("train", whole.train), ("test", whole.test))}
    seen = _rows(tuned.train) + _rows(tuned.test)
    assert seen == texts["train"], "the same rows, and none of the test rows beside them"
    everything = corpus(DATASET)
    assert len(whole.train) + len(whole.test) == len(everything.train) + len(everything.test)


def _rows(part):
    """Count how often each row of features occurs."""
    held = part.features
    ends = held.offsets.tolist()
    columns, values = held.columns.tolist(), held.values.tolist()
    return Counter((tuple(columns[a:b]), tuple(values[a:b])) for a, b in pairwise(ends))


def test_what_belongs_together_is_held_out_together():
    users = np.repeat(np.arange(40), 12)
    sources = [f"{user}/{number // 2}" for user in range(40) for number in range(12)]
    held = held_out_within(users, sources, salt="test")
    by_source = held.reshape(-1, 2)
    assert (by_source[:, 0] == by_source[:, 1]).all()
    assert (held.reshape(40, 12).sum(axis=1) == 2).all(), "one of six sources of everybody"
    assert (held != held_out_within(users, sources, salt="validation")).any()


@pytest.mark.usefixtures("real_accounting")
def test_the_published_federation_costs_what_the_paper_says():
    """It is 34 by RDP as claimed, and 24.1 by PLD, at δ = 1/400."""
    method = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=0.3, groups=by_user(most=1)), lr=1.0)
    sampler = poisson(users=PUBLISHED.users, expected_size=PUBLISHED.cohort)
    found = [
        epsilon_of_run(method, sampler, PUBLISHED.rounds, delta=PUBLISHED.delta, accountant=one)
        for one in (Accountant.PLD, Accountant.RDP)
    ]
    assert found[0] == pytest.approx(24.1, abs=0.05)
    assert found[1] == pytest.approx(34, abs=1)


@pytest.fixture(scope="module")
def records():
    """Two rounds with few users, with and without privacy."""
    small = {
        "400 users": replace(PUBLISHED, users=30, cohort=10, rounds=2),
        "400 users, no privacy": replace(
            SCENARIOS["400 users, no privacy"], users=30, cohort=10, rounds=2
        ),
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(federated_jobs, "SCENARIOS", small)
        found = {}
        for scene in small:
            for method in LABELS:
                setting = settings_of(method, SCENARIOS[scene])[0]
                job = FederatedJob(scene, "paper", method, setting, 0, tuning=False)
                found[scene, "paper", method] = [run(job)]
    return found


def test_private_runs_state_an_epsilon_for_users_and_twins_none(records):
    for (scene, _, _), (record,) in records.items():
        private = SCENARIOS[scene].private
        assert (record["epsilon_pld"] is not None) is private is record["private"]
        assert 0 <= record["values"]["accuracy"] <= 1
        assert record["users"] == 30


def test_methods_differ_where_they_should(records):
    chains = {method: records["400 users", "paper", method][0]["chain"] for method in LABELS}
    assert "precondition" in chains["adadps-server"]
    assert "A = max" in chains["adadps-local"].split(">")[0], "at every local step"
    assert chains["adadps-two-sided"].count("A = max") == 2, "on the device and after the noise"
    assert "A = max" not in chains["fedavg"] + chains["fedadam"]
    assert "adam(" in chains["fedadam"]
    twin = records["400 users, no privacy", "paper", "fedavg"][0]["chain"]
    assert "average(users" in twin
    assert "momentum(0.9" in twin


def test_rows_and_a_figure(records):
    rows = [federated_table._row(line, mine) for line, mine in records.items()]
    assert {"experiment", "dataset", "method", "mean", "epsilon_pld", "settings"} <= rows[0].keys()
    assert {row["method"] for row in rows} >= {"DP-FedAvg", "FedAvg", "AdaDPS, on the device"}
    assert federated_table.figure_of(records).startswith(b"\x89PNG")
    assert sum(len(part) for _, part in federated_table.tables_of(rows)) == len(rows)
