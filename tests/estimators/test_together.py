"""Estimators and `adadps train` under torchrun: one model, one ledger, one process that speaks."""

import json

import numpy as np
import pytest

from adadps import DiskLedger
from adadps.data.bounds import Bounds
from adadps.data.tables import read_chunks
from adadps.engine.group import ALONE, Group
from adadps.errors import ContractError
from adadps.estimators.labels import Labels
from adadps.estimators.paid import MeasuredFacts
from adadps.estimators.tables.saved_model import load_model
from adadps.estimators.together import FactsInWords, refuse_choice
from support import team_estimators as work


def test_an_estimator_states_what_it_would_in_one_process(team):
    alone = work.declared()
    first, second = team.run(work.declared)
    assert first == second
    assert first["weights"] != alone["weights"]  # the noise is fresh
    same = ("classes", "claim", "noise", "facts", "charges")
    assert {name: first[name] for name in same} == {name: alone[name] for name in same}


def test_what_is_paid_for_is_measured_once_and_told(team):
    first, second = team.run(work.paid_classes)
    assert first == second
    assert first["classes"] == ["high", "low"]
    assert len(first["facts"][1]) == 2
    assert sum(entry["count"] for entry in first["charges"]) == first["claim"][2] + 2


def test_several_runs_are_paid_from_the_ledger_of_the_first_process(team, tmp_path):
    path = str(tmp_path / "runs.ledger")
    (one, both, numbers), other = team.run(work.several_runs, path)
    assert other == (one, both, numbers)
    with DiskLedger(path) as ledger:
        assert ledger.entries > both["claim"][2] > one["claim"][2]
        assert ledger.identity == one["ledger"][1]
    assert both["claim"][0] == 4.0
    assert "whole budget of the ledger" in both["claim"][3]


def test_only_the_first_process_warns(team):
    first, second = team.run(work.without_declarations)
    assert first > second == 0


def test_processes_with_other_rows_stop(team):
    for found in team.outcomes(work.other_rows_in_the_second):
        assert found.kind == "ContractError"
        assert "Expected the same data in all 2 processes" in found.text


def test_features_are_chosen_in_one_process():
    refuse_choice(ALONE)

    class Others(Group):
        size, is_alone = 2, False

    with pytest.raises(ContractError, match="named features in 2 processes"):
        refuse_choice(Others())


def test_what_was_measured_survives_the_telling():
    bounds = Bounds(np.array([-1.5, 0.0]), np.array([2.5, 1e300]))
    facts = MeasuredFacts(Labels(np.array([3, 5]), several=False), bounds, None)
    run, found = FactsInWords.decode(json.loads(json.dumps(FactsInWords.encode(("r", facts)))))
    assert (run, found.facts, found.features) == ("r", facts.facts, None)
    assert found.labels.classes.dtype == facts.labels.classes.dtype
    assert found.targets.high.tolist() == [2.5, 1e300]


TABLES = {
    "declared": {"classes": "high,low", "examples": work.ROWS},
    "paid for": {"rare": "other", "examples": work.ROWS, "ledger": "shared.ledger"},
    "by user": {"classes": "high,low", "user": "who", "users": 200, "ledger": "shared.ledger"},
}


@pytest.mark.parametrize("how", TABLES)
def test_a_table_gives_one_model_that_predicts(how, team, tmp_path):
    work.write_table(tmp_path / "table.csv")
    options = dict(TABLES[how])
    if "ledger" in options:
        options["ledger"] = tmp_path / options["ledger"]
    (params, described, said), (others, also, nothing) = team.run(
        work.table_trained, tmp_path, options
    )
    assert (params, described) == (others, also)
    assert said
    assert nothing == []
    kept = {"table.csv", "model", *(["shared.ledger"] if "ledger" in options else [])}
    assert {path.name for path in tmp_path.iterdir() if ".ledger-" not in path.name} == kept
    model = load_model(tmp_path / "model")
    table = next(iter(read_chunks(tmp_path / "table.csv")))
    assert model.result.params["weight"].tolist() == params["weight"]
    assert {"high", "low"} >= set(model.predictions(table)["prediction"]) - {"other"}
    privacy = described["privacy"]
    with DiskLedger(options.get("ledger", tmp_path / "model" / "ledger")) as ledger:
        assert ledger.entries == sum(entry["count"] for entry in privacy["charges"])
    assert len(privacy["measured"]) == (2 if how == "paid for" else 0)


def test_a_table_that_one_process_does_not_find_ends_both(team, tmp_path):
    work.write_table(tmp_path / "table.csv")
    options = {**TABLES["declared"], "ledger": tmp_path / "own.ledger"}
    first, second = team.outcomes(lost_in_the_second, tmp_path, options)
    assert first.kind == second.kind == "DataError"
    assert first.text == second.text
    assert "lost.csv" in first.text
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def lost_in_the_second(folder, options):
    work.table_trained(folder, options, lost_in_the_second=True)
