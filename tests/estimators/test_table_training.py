"""`adadps train` and `adadps predict` on texts, numbers and categories, in all formats."""

import json

import numpy as np
import pytest
import torch

from adadps import Accountant, Budget, load_result
from adadps.data.sparse_rows import SparseRows
from adadps.data.tables import read_table, write_table
from adadps.engine.objective import reweighed
from adadps.errors import SettingError
from adadps.estimators.planner.methods import resolved, takes_side_information
from adadps.estimators.planner.plan import RULE, GivenSettings, plan_training
from adadps.estimators.tables.features import RowFeatures, Targets, prepare_for_rows
from adadps.estimators.tables.schema import Categorical, Label, Numeric, Schema
from adadps.methods.side import given_frequencies
from adadps.types import Method
from support.commands import files, plain
from support.mixed_tables import HEADER, call, make, rows

QUICK = ("--epsilon", "8", "--words", "500", "--epochs", "15")


def trained(*arguments):
    """On a ledger, because RDP is computed in no time."""
    ledger = f"{arguments[-1]}.ledger"
    shown = call("train", *arguments, *QUICK, "--ledger", ledger, "--json")
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


@pytest.fixture
def data(tmp_path):
    return make(tmp_path / "data.csv", rows(600)), make(tmp_path / "test.csv", rows(150, 5000))


def test_numbers_and_categories_alone_are_trained_by_dp_sgd(tmp_path, data):
    train, test = data
    columns = ("--numeric", "age=0,100", "--categorical", "country=de,fr,nl", "--label", "kind")
    told = trained(train, *columns, "--test", test, "--out", tmp_path / "model")
    assert told["settings"]["method"] == "dp-sgd"
    assert told["side_information"] == []
    assert told["history"][0]["value"] > 0.85
    left = {"data.csv", "test.csv", "model.ledger", "model", "model.json", "result.json"}
    left |= {"card.json", "card.md", "report.html"}
    assert set(files(tmp_path)) == left | {"weights.safetensors"}, "no rows, no checkpoint"
    facts = told["privacy"]["assumed_public"]
    assert "the bounds of 'age', declared: 0 to 100" in facts
    assert "the levels of 'country', declared: de, fr, nl" in facts
    assert "the classes, read off the data: old, young" in facts
    assert not any("vocabulary" in fact for fact in facts)


@pytest.mark.parametrize("ending", ["tsv.gz", "jsonl", "parquet"])
def test_texts_numbers_and_categories_in_other_formats(tmp_path, ending):
    train = make(tmp_path / f"data.{ending}", rows(600))
    test = make(tmp_path / f"test.{ending}", rows(150, 5000))
    schema = tmp_path / "schema.json"
    given = {
        "text": ["title"],
        "numeric": {"age": {"low": 0, "high": 100}},
        "categorical": {"country": {}},
        "label": {"column": "kind", "classes": ["young", "old"]},
        "examples": 600,
    }
    schema.write_text(json.dumps(given), encoding="utf-8")
    told = trained(train, "--schema", schema, "--test", test, "--out", tmp_path / "model")
    assert told["settings"]["method"] == "dp-sgd-weighted"
    assert "IDF" in told["side_information"][0]["source"]
    assert told["history"][0]["value"] > 0.75
    out = tmp_path / f"out.{ending}"
    shown = call("predict", tmp_path / "model", test, "--out", out, "--probabilities", "--json")
    assert shown.exit_code == 0, shown.output
    new = ["prediction", "probability young", "probability old"]
    assert json.loads(shown.stdout) == {"out": str(out), "columns": new, "rows": 150}
    table = read_table(out)
    assert table.header == (*HEADER, *new)
    shares = np.array([[float(v) for v in table.texts(name)] for name in new[1:]])
    assert np.allclose(shares.sum(0), 1)
    right = [a == b for a, b in zip(table.texts("prediction"), table.texts("kind"), strict=True)]
    assert np.mean(right) == pytest.approx(told["history"][0]["value"])


def test_several_labels_in_one_cell(tmp_path, data):
    train, test = data
    columns = ("--text", "title", "--label", "tags", "--label-separator", ";")
    told = trained(train, *columns, "--test", test, "--out", tmp_path / "model")
    assert told["history"][0]["metric"] == "top label accuracy"
    assert told["history"][0]["value"] > 0.85
    assert (
        "the classes, read off the data: blame, cheap, praise"
        in (told["privacy"]["assumed_public"])
    )
    out = tmp_path / "out.csv"
    assert call("predict", tmp_path / "model", test, "--out", out).exit_code == 0
    table = read_table(out)
    assert table.header[-2:] == ("prediction", "probability")
    assert set(table.column("prediction")) <= {"blame", "cheap", "praise"}
    assert all(1 / 3 <= float(share) <= 1 for share in table.column("probability"))


def test_regression(tmp_path, data):
    train, test = data
    columns = ("--numeric", "age=0,100", "--categorical", "country=de,fr,nl", "--label", "price")
    bounds = ("--regression", "--label-bounds", "0,100")
    told = trained(train, *columns, *bounds, "--test", test, "--out", tmp_path / "model")
    assert told["history"][0]["metric"] == "mean absolute error"
    prices = [float(price) for price in read_table(test).column("price")]
    blind = np.abs(np.array(prices) - 50).mean()
    assert told["history"][0]["value"] < blind * 0.7
    out = tmp_path / "out.csv"
    shown = call("predict", tmp_path / "model", test, "--out", out)
    assert shown.exit_code == 0, shown.output
    found = np.array([float(price) for price in read_table(out).column("prediction")])
    assert np.abs(found - prices).mean() == pytest.approx(told["history"][0]["value"], rel=1e-3)
    refused = call("predict", tmp_path / "model", test, "--out", tmp_path / "x", "--probabilities")
    assert refused.exit_code == 2
    assert "predicts a number" in plain(refused.stderr)


def test_unseen_levels_and_columns_at_prediction_change_nothing_else(tmp_path, data):
    columns = ("--numeric", "age=0,100", "--categorical", "country=de,fr,nl", "--label", "kind")
    trained(data[0], *columns, "--out", tmp_path / "model")
    new = tmp_path / "new.jsonl"
    new.write_text('{"country": "never", "age": 99, "x": [1]}\n', encoding="utf-8")
    out = tmp_path / "out.jsonl"
    assert call("predict", tmp_path / "model", new, "--out", out).exit_code == 0
    (written,) = (json.loads(line) for line in out.read_text(encoding="utf-8").splitlines())
    assert written["x"] == [1]
    assert written["prediction"] in ("old", "young")


# Public texts


def test_public_texts_give_vocabulary_and_frequencies(tmp_path, data):
    public = make(tmp_path / "public.csv", rows(100, 9000))
    because = ("--public", public, "--public-because", "they were printed")
    told = trained(
        data[0], "--text", "title", "--label", "kind", *because, "--out", tmp_path / "model"
    )
    others = (known for known in told["side_information"] if "wordllama" not in known["source"])
    side, start = others
    assert start["source"].startswith("starting weights: a logistic regression on 100 labelled")
    assert side["source"].startswith("100 public texts in public.csv; A = IDF^-1")
    assert side["public_because"] == "they were printed"
    held = json.loads((tmp_path / "model" / "model.json").read_text(encoding="utf-8"))
    assert {"good", "great", "free", "money", "n9000"} <= set(held["vocabulary"])
    assert "the" not in held["vocabulary"]


def test_private_rows_that_are_public_are_left_out(tmp_path, data, monkeypatch):
    """Half of the private rows are in the public table."""
    from adadps.estimators.tables import training

    seen = []

    def watched(layer, loss, examples, *, method, **options):
        from adadps.data.examples import private_rows

        seen.append(private_rows(examples, method.public_rows))
        raise SettingError("Expected nothing more, found enough. Stop.")

    monkeypatch.setattr(training, "fit", watched)
    half = make(tmp_path / "public.csv", rows(300))
    because = ("--public", half, "--public-because", "they were printed")
    shown = call(
        *("train", data[0], "--text", "title", "--label", "kind"),
        *(*because, *QUICK, "--ledger", tmp_path / "l", "--out", tmp_path / "model"),
    )
    assert shown.exit_code == 2
    assert seen[0].tolist() == [False] * 300 + [True] * 300


def test_words_of_declared_classes_belong_to_the_vocabulary(tmp_path, data):
    columns = ("--text", "title", "--label", "kind", "--classes", "old,young,Quuxian Frobs")
    told = trained(data[0], *columns, "--out", tmp_path / "model")
    held = json.loads((tmp_path / "model" / "model.json").read_text(encoding="utf-8"))
    assert held["vocabulary"][-2:] == ["not quuxian", "not frobs"]
    assert {"quuxian", "frobs"} <= set(held["vocabulary"])
    assert any("2 words of the declared classes" in f for f in told["privacy"]["assumed_public"])


# Settings

TEXT_ONLY = Schema(("text",), (), (), Label("y", ("a", "b")))
MIXED = Schema(
    ("text",),
    (Numeric("age", 0, 1), Numeric("size", 0, 1)),
    (Categorical("kind", ("a", "b")),),
    Label("y", ("a", "b")),
)
WORDS = tuple(f"word{n}" for n in range(300))
KNOWN = given_frequencies(
    [0.05 / (n + 1) for n in range(300)], source="a book", public_because="printed"
)


def planned(method, schema=TEXT_ONLY, *, epsilon=1.0, **given):
    known = KNOWN if takes_side_information(method) else None
    return plan_training(
        prepare_for_rows(method, RowFeatures(schema, WORDS), known),
        examples=10_000,
        budget=Budget(epsilon, 1e-5),
        loss=Targets(schema.label).loss_facts,
        accountant=Accountant.RDP,
        given=GivenSettings(**given),
    )


@pytest.mark.parametrize("method", [Method.ADADPS, Method.ADADPS_TWO_SIDED, Method.DP_SGD_WEIGHTED])
def test_other_blocks_keep_their_share_of_the_norm_whatever_the_weights_of_words(method):
    features = RowFeatures(MIXED, WORDS)
    typical = features.typical(KNOWN)
    (stage, *_) = planned(method, MIXED).chain.informed
    scale = 1 / stage.side.named["weight"][0]
    before = SparseRows.from_scipy(typical).to_dense().double()
    after = before * scale
    shares = [
        float((rows[:, : features.words].norm(dim=1) / rows.norm(dim=1)).median())
        for rows in (before, after)
    ]
    assert shares[0] == pytest.approx(shares[1], abs=0.02)
    assert len(set(scale[features.words :].tolist())) == 1
    again = reweighed(before.float(), scale.float())
    assert torch.allclose(again.norm(dim=1), torch.ones(len(again)))


def test_auto_is_weighted_with_texts_and_plain_without():
    assert resolved(Method.AUTO, informed=True) is Method.DP_SGD_WEIGHTED
    assert resolved(Method.AUTO, informed=True, on_devices=True) is Method.ADADPS_TWO_SIDED
    assert resolved(Method.AUTO, informed=False) is Method.DP_SGD
    assert resolved(Method.DP_ADAM, informed=True) is Method.DP_ADAM


def test_less_budget_means_shorter_steps_and_given_settings_are_used():
    rich, poor = (planned(Method.DP_SGD, epsilon=e).settings for e in (8.0, 0.5))
    assert poor.noise_multiplier > rich.noise_multiplier
    assert poor.lr < rich.lr
    given = planned(Method.DP_SGD, batch_size=50, epochs=1, clip_norm=0.7, lr=0.25).settings
    assert (given.steps, given.clip_norm, given.lr) == (200, 0.7, 0.25)
    assert planned(Method.DP_ADAM, lr=0.25).settings.lr == 0.25
    assert planned(Method.DP_ADAM).settings.lr == pytest.approx(1.2 / np.sqrt(400))


def test_clips_follow_the_rows_that_they_meet():
    plain, before, both = (
        planned(method).settings
        for method in (Method.DP_SGD, Method.ADADPS, Method.ADADPS_TWO_SIDED)
    )
    assert before.clip_norm > 2 * plain.clip_norm, "D makes rows longer"
    assert before.lr * before.clip_norm == pytest.approx(plain.lr * plain.clip_norm)
    assert both.lr * both.clip_norm < before.lr * before.clip_norm, "the noise is scaled as well"


def test_a_regression_from_texts_is_planned():
    schema = Schema(("text",), (), (), Label("y", regression=True, low=0, high=1))
    choice = planned(Method.DP_SGD_WEIGHTED, schema, epsilon=50.0).settings
    assert choice.clip_norm == pytest.approx(RULE.clip)
    assert choice.lr == 0.5, "no longer than a parabola allows"
    assert planned(Method.DP_SGD_WEIGHTED, epsilon=50.0).settings.lr > 1


def test_what_was_trained_is_in_the_statement(tmp_path, data):
    columns = ("--text", "title", "--numeric", "age", "--label", "kind")
    told = trained(data[0], *columns, "--examples", "600", "--out", tmp_path / "model")
    assert load_result(tmp_path / "model").describe() == told
    card = (tmp_path / "model" / "card.md").read_text(encoding="utf-8")
    assert card.startswith("# Privacy card of model\n")
    assert "reads 'title' (text), 'age' (number); predicts 'kind'" in card
    page = (tmp_path / "model" / "report.html").read_text(encoding="utf-8")
    assert "<h1>model</h1>" in page
    assert "draws a given conclusion from this model" in page
    facts = told["privacy"]["assumed_public"]
    assert any(fact.startswith("the bounds of 'age', read off the data") for fact in facts)
    assert told["settings"]["model"] == (
        "linear; reads 'title' (text), 'age' (number); predicts 'kind' (one of 2 classes); "
        "texts as log(1 + count) of 1000 public words, 500 of them negated and embeddings of "
        "width 256 (wordllama)"
    )


COLUMNS = ("--numeric", "age=0,100", "--categorical", "country=de,fr,nl", "--label", "kind")


def reordered(path, content, extra=()):
    """The same rows with their columns in another order, and perhaps one more."""
    with path.open("wb") as stream:
        table = [[*row[::-1], *extra] for row in content]
        write_table(stream, path, [[*HEADER[::-1], *(["id"] if extra else [])], *table])
    return str(path)


@pytest.mark.parametrize("extra", [(), ("7",)], ids=["reordered", "with another column"])
def test_the_check_finds_training_rows_whatever_the_order_of_columns(tmp_path, data, extra):
    test = reordered(tmp_path / "again.csv", [*rows(600), *rows(100, 5000)], extra)
    given = (*COLUMNS, *QUICK, "--test", test, "--out", tmp_path / "model")
    shown = call("train", data[0], *given, "--check-overlap")
    assert shown.exit_code == 0
    assert "600 of 700 held-out rows" in plain(shown.stderr)
    assert not (tmp_path / "model").exists()


def test_training_rows_among_the_test_are_measured_like_the_others(tmp_path, data):
    """The others are labelled wrongly, so that the share of training rows shows in the accuracy."""
    wrong = [[*row[:-1], "young" if row[-1] == "old" else "old"] for row in rows(200, 5000)]
    test = make(tmp_path / "mixed.csv", [*list(rows(200)), *wrong])
    told = trained(data[0], *COLUMNS, "--test", test, "--out", tmp_path / "model")
    assert 0.4 < told["history"][0]["value"] < 0.6


def test_public_texts_are_refused_beside_numbers(tmp_path, data):
    given = ("--text", "title", *COLUMNS, "--public", data[1], "--public-because", "made up")
    shown = call("train", data[0], *given, *QUICK, "--out", tmp_path / "model")
    assert shown.exit_code == 2
    assert "texts alone beside --public" in plain(shown.output)
