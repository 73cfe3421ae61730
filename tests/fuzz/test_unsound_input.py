"""What fuzzing has found, kept: inputs that ended in a traceback end in an error of ours."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest
import torch
from scipy import sparse
from typer.testing import CliRunner

from adadps import AdadpsError, Budget, DiskLedger, examples, load_result, public_examples, side
from adadps.accounting.events import event_of
from adadps.accounting.ledger.summary import summarise
from adadps.cli.main import app
from adadps.data.sparse_rows import SparseRows
from adadps.data.tables import Table
from adadps.errors import DataError
from adadps.estimators.tables.saved_model import load_model
from adadps.estimators.text import BagOfWords, public_vocabulary
from adadps.files import parse_json
from fuzz import seeds

DEEP = "[" * 100_000 + "]" * 100_000

BAD_JSON = {
    "a name twice": ('{"a": 1, "a": 2}', "'a' twice"),
    "a name twice within": ('[{"a": {"b": 1, "b": 1}}]', "'b' twice"),
    "NaN": ("[NaN]", "finite"),
    "infinity": ("[-Infinity]", "finite"),
    "a float beyond float64": ("[1e999]", "finite"),
    "half a character": ('["\\ud800"]', "something else"),
    "half a character as a name": ('{"\\udc00": 1}', "something else"),
    "too deep": (DEEP, "too deep"),
    "a number of 5,000 digits": ("9" * 5000, "something else"),
    "nothing": ("", "something else"),
}


@pytest.mark.parametrize(("text", "message"), BAD_JSON.values(), ids=BAD_JSON)
def test_json_that_is_not_meant_so(text, message):
    with pytest.raises(DataError, match=message):
        parse_json(text)


def event(fields, kind="GaussianDpEvent"):
    return json.dumps({kind: fields})


BAD_EVENTS = {
    "too deep": DEEP,
    "noise as a text": event({"noise_multiplier": "2.0"}),
    "noise as a list": event({"noise_multiplier": [2.0]}),
    "noise as an event": event({"noise_multiplier": {"NoOpDpEvent": {}}}),
    "noise as a truth": event({"noise_multiplier": True}),
    "negative noise": event({"noise_multiplier": -1.0}),
    "noise beyond float64": event({"noise_multiplier": 10**400}),
    "no noise": event({"noise_multiplier": None}),
    "half a count": event({"event": {"NoOpDpEvent": {}}, "count": 1.5}, "SelfComposedDpEvent"),
    "a negative count": event({"event": {"NoOpDpEvent": {}}, "count": -3}, "SelfComposedDpEvent"),
    "a number as an event": event({"event": 1, "count": 1}, "SelfComposedDpEvent"),
    "numbers as events": event({"events": [1, 2]}, "ComposedDpEvent"),
    "an event as events": event({"events": {"NoOpDpEvent": {}}}, "ComposedDpEvent"),
    "a number as events": event({"events": 1}, "ComposedDpEvent"),
    "a probability above one": event(
        {"sampling_probability": 1.5, "event": {"NoOpDpEvent": {}}}, "PoissonSampledDpEvent"
    ),
    "fields that are a list": '{"NoOpDpEvent": []}',
    "an event for each level": '{"ComposedDpEvent": {"events": [' * 100 + "]}}" * 100,
}


@pytest.mark.parametrize("text", BAD_EVENTS.values(), ids=BAD_EVENTS)
def test_events_that_cannot_be(text):
    with pytest.raises(DataError, match="Expected a privacy event"):
        event_of(text)


@pytest.mark.parametrize("text", seeds.event_texts())
def test_events_that_can_be(text):
    assert event_of(text) in seeds.EVENTS


# Ledgers that are sound databases with unsound values


@pytest.fixture
def ledger(tmp_path):
    file = tmp_path / "l.ledger"
    file.write_bytes(seeds.ledgers()[1])
    return file


def test_the_ledger_of_the_next_test_is_sound(ledger):
    assert summarise(ledger)["entries"] == 6
    with DiskLedger(ledger) as opened:
        assert opened.entries == 6


UNSOUND = {
    "a budget of bytes": "UPDATE terms SET epsilon = x'00'",
    "a budget of text": "UPDATE terms SET epsilon = 'much'",
    "half a budget": "UPDATE terms SET delta = NULL",
    "a negative budget": "UPDATE terms SET epsilon = -1.0",
    "no relation": "UPDATE terms SET relation = NULL",
    "no terms at all": "UPDATE terms SET relation = NULL, accountant = NULL, unit = NULL",
    "an unknown relation": "UPDATE terms SET relation = 'sameness'",
    "a plan of an unknown event": "UPDATE terms SET most_planned = 99",
    "a plan of no steps": "UPDATE terms SET most_planned_count = 0",
    "a charge of an unknown event": "UPDATE reservations SET event = 99 WHERE id = 1",
    "a charge of an unknown run": "UPDATE reservations SET run = 99 WHERE id = 1",
    "a charge in words": "UPDATE reservations SET event = 'one' WHERE id = 1",
    "a charge that is missing": "DELETE FROM reservations WHERE id = 2",
    "a first charge that moved": "UPDATE reservations SET id = -1 WHERE id = 1",
    "a run that is missing": "DELETE FROM runs WHERE id = 1",
    "a run very far away": "INSERT INTO runs SELECT 4611686018427387904, name, plan_hash, chain, "
    "sampler, side_information, planned_steps, paid_first, code_version FROM runs WHERE id = 1",
    "steps in words": "UPDATE runs SET planned_steps = 'many'",
    "negative payments": "UPDATE runs SET paid_first = -1",
    "a sampler that is a list": "UPDATE runs SET sampler = '[]'",
    "a sampler that is no JSON": "UPDATE runs SET sampler = 'poisson'",
    "more examples than a float": f"UPDATE runs SET sampler = '{{\"examples\": {10**400}}}'",
    "sources that are numbers": "UPDATE runs SET side_information = '[{\"source\": 1}]'",
    "an event in bytes": "UPDATE events SET content = x'7b7d' WHERE id = 1",
    "an event of text": "UPDATE events SET content = '{}' WHERE id = 1",
    "a column that is missing": "ALTER TABLE runs DROP COLUMN chain",
}


@pytest.mark.parametrize("change", UNSOUND.values(), ids=UNSOUND)
def test_ledgers_with_unsound_values_are_refused(ledger, change):
    with closing(sqlite3.connect(ledger, isolation_level=None)) as connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in triggers.fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(change)
    with pytest.raises(AdadpsError, match=r"Expected .*found"):
        summarise(ledger)
    with pytest.raises(AdadpsError, match=r"Expected .*found"):
        DiskLedger(ledger)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_a_ledger_under_a_name_that_cannot_be(tmp_path, name):
    with pytest.raises(DataError, match="Expected"):
        DiskLedger(tmp_path / name, budget=Budget(1.0, 1e-5))
    with pytest.raises(DataError, match="Expected"):
        summarise(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


# Results


@pytest.fixture
def stored(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name, content in seeds.results()[0].items():
        (folder / name).write_bytes(content)
    return folder


def change(folder, *path, value):
    file = folder / "result.json"
    held = entry = json.loads(file.read_text(encoding="utf-8"))
    for name in path[:-1]:
        entry = entry[name]
    entry[path[-1]] = value
    file.write_text(json.dumps(held), encoding="utf-8")


UNSOUND_RESULTS = {
    "epsilon as a text": ("privacy", "epsilon", "1.0"),
    "epsilon as a truth": ("privacy", "epsilon", True),
    "negative epsilon": ("privacy", "epsilon", -1.0),
    "an epsilon below its mechanism's": ("privacy", "epsilon", 1e-6),
    "no mechanism for an epsilon": ("privacy", "mechanism_epsilon", None),
    "no epsilon in a private result": ("privacy", "epsilon", None),
    "reasons against a finite epsilon": ("privacy", "not_private_because", ["a seed"]),
    "reasons as one text": ("privacy", "not_private_because", "seed"),
    "delta of one": ("privacy", "delta", 1),
    "an accountant that is a list": ("privacy", "accountant", []),
    "half a step": ("privacy", "steps", 0.5),
    "a value as a text": ("history", 0, {"step": 1, "value": "0.9"}),
    "a method that is a number": ("method", 1),
    "a private flag as a text": ("private", "yes"),
    "a flag against the statement": ("private", False),
    "sources as a text": ("side_information", "wordfreq"),
    "charges without a count": ("privacy", "charges", [{"event": "{}"}]),
    "half a charge": ("privacy", "charges", [{"event": "{}", "count": 0.5}]),
    "public facts as a list": ("public_facts", []),
    "half a parameter": ("public_facts", "parameters", 0.5),
    "learning rates without their sum": ("public_facts", "learning_rates", {"first": 1.0}),
    "a spread of something else": ("public_facts", "preconditioners", [{"place": "here"}]),
    "noise of less than nothing": (
        *("public_facts", "noise_scale"),
        {"typical": -1.0, "largest": 1.0},
    ),
}


@pytest.mark.parametrize("path", UNSOUND_RESULTS.values(), ids=UNSOUND_RESULTS)
def test_unsound_results_are_refused(stored, path):
    assert load_result(stored).privacy.private
    change(stored, *path[:-1], value=path[-1])
    with pytest.raises(DataError, match=r"Expected .* in .*result\.json, found .*from a copy"):
        load_result(stored)


def test_deep_json_in_a_result(stored):
    (stored / "result.json").write_text('{"format": ' + DEEP + "}", encoding="utf-8")
    with pytest.raises(DataError, match=r"Expected JSON in .*result\.json, found something else"):
        load_result(stored)


UNSOUND_MODELS = {
    "words as one text": {"vocabulary": "apple"},
    "a word twice": {"vocabulary": ["apple"] * 20},
    "fewer words than weights": {"vocabulary": ["apple"]},
    "another format": {"format": 7},
    "a negation of nothing": {"negation": {"openers": [], "reach": 4}},
    "a negation without a reach": {"negation": {"openers": ["not"]}},
    "another kind": {"kind": "oracle"},
    "no schema": {"schema": None},
    "one class": {"label": {"column": "label", "classes": ["a"]}},
    "a class twice": {"label": {"column": "label", "classes": ["a", "a"]}},
    "a class that is a number": {"label": {"column": "label", "classes": ["a", 1]}},
    "more classes than weights": {"label": {"column": "label", "classes": ["a", "b", "c"]}},
    "classes that are not known": {"label": {"column": "label"}},
    "a column that is a number": {"text": [1]},
    "a column more than weights": {"text": ["text", "more"]},
    "a column without bounds": {"numeric": {"id": {}}},
}


def saved(folder):
    for name, content in seeds.models()[0].items():
        (folder / name).write_bytes(content)
    apple = Table(folder, ("text",), [["apple"]], [2])
    assert load_model(folder).predictions(apple)["prediction"][0] in ("a", "b")
    return json.loads((folder / "model.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("other", UNSOUND_MODELS.values(), ids=UNSOUND_MODELS)
def test_unsound_models_are_refused(tmp_path, other):
    held = saved(tmp_path)
    held |= {"schema": held["schema"] | other} if other.keys() <= held["schema"].keys() else other
    (tmp_path / "model.json").write_text(json.dumps(held), encoding="utf-8")
    with pytest.raises(DataError, match="Expected"):
        load_model(tmp_path)


UNSOUND_FIRST_MODELS = {
    "one class": {"classes": ["a"]},
    "words as one text": {"vocabulary": "apple"},
    "a column that is a number": {"text_column": 1},
    "counts of another kind": {"dampened": False},
}


@pytest.mark.parametrize("other", [{}, *UNSOUND_FIRST_MODELS.values()])
def test_models_of_the_first_format_are_read_if_they_are_sound(tmp_path, other):
    held = saved(tmp_path)
    first = {
        "format": 1,
        "kind": "linear text classifier",
        "text_column": "text",
        "dampened": True,
        "classes": held["schema"]["label"]["classes"],
        "vocabulary": held["vocabulary"],
    }
    before = load_model(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps(first | other), encoding="utf-8")
    if other:
        with pytest.raises(DataError, match="Expected"):
            load_model(tmp_path)
        return
    rows = Table(tmp_path, ("text",), [["apple and saw"], ["the pear"]], [2, 3])
    found = load_model(tmp_path).predictions(rows, probabilities=True)
    assert found == before.predictions(rows, probabilities=True)


# Arrays


def rows(offsets=(0, 1, 2), columns=(0, 1), values=(1.0, 2.0), width=2, dtype=torch.float32):
    return SparseRows(
        torch.tensor(offsets), torch.tensor(columns), torch.tensor(values, dtype=dtype), width
    )


def broken_csr():
    made = sparse.csr_matrix(np.eye(3))
    made.indices[0] = 7
    return made


NONE = torch.tensor([]).long()
NOT_FEATURES = {
    "dates": np.zeros(2, "M8[s]"),
    "objects": np.array([[1, None], [2, 3]], dtype=object),
    "structures": np.zeros(2, "V4"),
    "complex numbers": np.zeros((2, 2), complex),
    "complex sparse numbers": sparse.csr_matrix(np.eye(2)) * 1j,
    "a matrix that points outside": broken_csr(),
    "a tensor without memory": torch.zeros(2, 2, device="meta"),
    "quarter precision": torch.zeros(2, 2).to(torch.float8_e4m3fn),
    "rows that point outside": rows(columns=(0, 5)),
    "rows that point before": rows(columns=(-1, 1)),
    "rows of negative width": rows(width=-1),
    "rows of half a width": rows(width=2.5),
    "rows of bfloat16": rows(dtype=torch.bfloat16),
    "rows with 32-bit columns": SparseRows(
        torch.tensor([0, 1, 2]), torch.tensor([0, 1], dtype=torch.int32), torch.ones(2), 2
    ),
    "rows without offsets": SparseRows(
        torch.tensor([]).long(), torch.tensor([]).long(), torch.ones(0), 2
    ),
}


@pytest.mark.parametrize("features", NOT_FEATURES.values(), ids=NOT_FEATURES)
def test_features_that_are_none(features):
    with pytest.raises(DataError, match="Expected"):
        examples(features, [0, 1])


def test_sparse_targets_are_refused():
    with pytest.raises(DataError, match="targets"):
        examples(torch.eye(2), torch.eye(2).to_sparse())


@pytest.mark.parametrize("array", [np.eye(2)[::-1].T, np.eye(2).astype(">f8")])
def test_odd_layouts_of_numbers_are_read(array):
    assert examples(array, [0, 1]).features.tolist() == array.tolist()


@pytest.mark.parametrize("values", [[[1], [1, 2]], ["x"], [None], np.zeros(2, "M8[s]"), 10**400])
def test_frequencies_that_are_no_numbers(values):
    with pytest.raises(AdadpsError, match="Expected"):
        side.given_frequencies(values, source="a", public_because="b")


def test_a_single_number_with_an_odd_stride_is_public():
    odd = torch.tensor([7]).as_strided((1,), (0,))
    held = public_examples([[1.0]], odd, source="a", public_because="b", batch_size=1)
    usual = public_examples([[1.0]], [7], source="a", public_because="b", batch_size=1)
    assert held.provenance == usual.provenance


def test_a_negative_seed_of_public_examples():
    with pytest.raises(DataError, match="seed >= 0"):
        public_examples([[1.0]], [0], source="a", public_because="b", batch_size=1, seed=-1)


@pytest.mark.parametrize("words", [7, None, ("a", 1), {"a": 1}, "apple"])
def test_vocabularies_that_are_none(words):
    with pytest.raises(DataError, match="vocabulary"):
        BagOfWords(words)


@pytest.mark.parametrize("language", ["", "xx", "-", "a" * 50])
def test_languages_that_are_none(language):
    with pytest.raises(DataError, match="language"):
        public_vocabulary(5, language)


def test_a_file_name_that_is_no_text_is_told():
    shown = CliRunner().invoke(app, ["ledger", "show", "caf\udce9.ledger"])
    assert shown.exit_code == 1
    assert "caf\\udce9.ledger" in shown.stderr
