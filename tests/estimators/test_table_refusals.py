"""Bad tables, schemas and models: a clear message, nothing overwritten, nothing spent."""

import json
import os
import re
import shutil
import signal
import time

import pytest
from dp_accounting import GaussianDpEvent

from adadps import Accountant, Budget, DiskLedger, Relation, load_result
from adadps.errors import AssumedPublicWarning
from adadps.estimators.tables.interruption import left_in_words
from adadps.estimators.tables.request import TrainingRequest
from adadps.estimators.tables.run_folder import TableRunFolder
from adadps.estimators.tables.training import train_from_table
from support.commands import files, in_another_process, plain
from support.mixed_tables import HEADER, call, make, rows

COLUMNS = ("--text", "title", "--numeric", "age=0,100", "--categorical", "country=de,fr,nl")
LABEL = ("--label", "kind")


def train(data, out, *more):
    quick = ("--epsilon", "8", "--words", "100", "--epochs", "1")
    return call("train", data, *quick, "--out", out, *more)


def spoiled(column, value, row=5):
    """A table in which one cell is spoiled, on line ``row`` + 2."""

    def content():
        made = list(rows(40))
        made[row][HEADER.index(column)] = value
        return made

    return content


def same_kind():
    return [[*row[:-1], "old"] for row in rows(40)]


TABLES = {
    "a misnamed column": (rows, ["--numeric", "agee=0,1"], "Did you mean 'age'?"),
    "one class only": (same_kind, [], "between 2 and 1000 different values"),
    "a label outside of the classes": (rows, ["--classes", "old,middle"], "found another on line"),
    "an empty text": (spoiled("title", ""), [], "none on line 7"),
    "an empty number": (spoiled("age", ""), [], "found none on line 7"),
    "not finite": (spoiled("age", "inf"), [], "something else on line 7"),
    "not a number": (spoiled("age", "NaN"), [], "none on line 7"),
    "no label": (spoiled("kind", ""), ["--missing", "fill"], "none on line 7"),
    "an unseen level": (spoiled("country", "be"), [], "found another on line 7"),
    "a rare class": (spoiled("kind", "ancient"), [], "on line 7"),
    "a label that is no number": (
        spoiled("price", "dear"),
        ["--label", "price", "--regression", "--label-bounds", "0,9"],
        "something else on line 7",
    ),
    "an odd language": (rows, ["--language", "xx"], "Expected a language"),
}


@pytest.mark.parametrize(("content", "more", "message"), TABLES.values(), ids=TABLES)
def test_bad_tables_leave_nothing_behind(tmp_path, content, more, message):
    data = make(tmp_path / "data.csv", content(40) if content is rows else content())
    label = () if "--label" in more else LABEL
    ledger = tmp_path / "ledger"
    shown = train(data, tmp_path / "new" / "model", *COLUMNS, *label, *more, "--ledger", ledger)
    assert shown.exit_code == 1, shown.output
    assert message in plain(shown.stderr)
    assert re.match(r"DataError: Expected .*found .*", plain(shown.stderr))
    assert files(tmp_path) == ["data.csv"]


def test_a_column_without_any_number_is_said_to_be_missing(tmp_path):
    place = HEADER.index("age")
    empty = [[*row[:place], "", *row[place + 1 :]] for row in rows(40)]
    data = make(tmp_path / "data.csv", empty)
    shown = train(data, tmp_path / "model", "--numeric", "age", *LABEL, "--missing", "fill")
    assert shown.exit_code == 1
    assert "found that all its cells are missing" in plain(shown.stderr)
    assert files(tmp_path) == ["data.csv"]


FILES = {
    "ragged": (b"title,kind\nx,old\nx,young,more\n", "found 3 on line 3"),
    "empty": (b"", "found an empty file"),
    "empty rows": (b"title,kind\n,\n", "none on line 2"),
    "header only": (b"title,kind\n", "found only a header"),
    "latin-1": (b"title,kind\ncaf\xe9,old\n", "Expected text in UTF-8"),
    "two columns of one name": (b"title,kind,kind\na,b,c\n", "more than once"),
}


@pytest.mark.parametrize(("content", "message"), FILES.values(), ids=FILES)
def test_bad_files_leave_nothing_behind(tmp_path, content, message):
    (tmp_path / "data.csv").write_bytes(content)
    shown = train(tmp_path / "data.csv", tmp_path / "model", "--text", "title", *LABEL)
    assert shown.exit_code == 1
    assert message in plain(shown.stderr)
    assert files(tmp_path) == ["data.csv"]


CALLS = {
    "no columns": (LABEL, "at least one column"),
    "no label": (COLUMNS, "a column of labels"),
    "bounds": (("--numeric", "age=9", *LABEL), "two numbers low,high"),
    "bounds in disorder": (("--numeric", "age=9,1", *LABEL), "two finite bounds"),
    "words without texts": (("--numeric", "age", *LABEL, "--method", "adadps"), "about words"),
    "side without texts": (("--numeric", "age", *LABEL, "--side", "wordfreq"), "no side"),
    "public for dp-sgd": ((*COLUMNS, *LABEL, "--method", "dp-sgd", "--public", "p"), "no side"),
    "public and side": ((*COLUMNS, *LABEL, "--side", "wordfreq", "--public", "p"), "one place"),
    "a reason for nothing": ((*COLUMNS, *LABEL, "--public-because", "p"), "Add --public FILE"),
    "bounds without regression": ((*COLUMNS, *LABEL, "--label-bounds", "0,1"), "found bounds"),
    "classes of a regression": (
        (*COLUMNS, *LABEL, "--regression", "--classes", "a,b"),
        "bounds for a regression",
    ),
    "strict": ((*COLUMNS[:2], "--numeric", "age", *LABEL, "--strict"), "bounds of 'age', the"),
}


@pytest.mark.parametrize(("options", "message"), CALLS.values(), ids=CALLS)
def test_calls_that_cannot_be_meant_so(tmp_path, options, message):
    data = make(tmp_path / "data.csv", rows(40))
    shown = train(data, tmp_path / "model", *options)
    assert shown.exit_code == 2, shown.output
    assert message in plain(shown.stderr)
    assert files(tmp_path) == ["data.csv"]


OTHERS = {
    "no reason for public texts": (["--public", "{}/other.csv"], "why"),
    "no public texts": (["--public", "{}/no.csv", "--public-because", "x"], "found nothing"),
    "a schema that is none": (["--schema", "{}/data.csv"], "a schema in JSON"),
    "a bad schema": (["--schema", "{}/schema.json"], "two finite bounds"),
    "no folder for rows": (["--store", "{}/nowhere"], "--store"),
}


@pytest.mark.parametrize(("options", "message"), OTHERS.values(), ids=OTHERS)
def test_other_files_that_stand_against_it(tmp_path, options, message):
    data = make(tmp_path / "data.csv", rows(40))
    make(tmp_path / "other.csv", rows(40))
    schema = {"numeric": {"price": {"low": 2, "high": 1}}}
    (tmp_path / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
    more = [option.format(tmp_path) for option in options]
    shown = train(data, tmp_path / "model", "--text", "title", *LABEL, *more)
    assert shown.exit_code == 1, shown.output
    assert message in plain(shown.stderr)
    assert files(tmp_path) == ["data.csv", "other.csv", "schema.json"]


def test_a_spent_ledger_is_refused_and_stays_as_it_is(tmp_path):
    data, ledger = make(tmp_path / "data.csv", rows(40)), tmp_path / "ledger"
    given = (*COLUMNS, *LABEL, "--ledger", ledger)
    assert train(data, tmp_path / "one", *given).exit_code == 0
    with DiskLedger(ledger) as held:
        before = held.entries
    shown = train(data, tmp_path / "two", *given)
    assert shown.exit_code == 1
    assert "Left: epsilon = " in plain(shown.stderr)
    with DiskLedger(ledger) as held:
        assert held.entries == before
    assert not (tmp_path / "two").exists()
    assert not (tmp_path / "two.checkpoint").exists()


# Models


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    data = make(folder / "data.csv", rows(60))
    ledger = ("--ledger", folder / "ledger")  # for RDP, which is computed in no time
    assert train(data, folder / "model", *COLUMNS, *LABEL, *ledger).exit_code == 0
    return folder / "model"


def unbroken(text):
    """Without what a narrow terminal puts into long paths."""
    return "".join(plain(text).split())


def changed(**other):
    def change(folder):
        held = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        (folder / "model.json").write_text(json.dumps(held | other), encoding="utf-8")

    return change


MODELS = {
    "another version": (changed(format=7), "found format 7"),
    "no words": (
        changed(vocabulary=[], embeddings=None),
        "and words of a model in {}/model.json, found some",
    ),
    "cut": (lambda folder: os.truncate(folder / "model.json", 100), "JSON in {}/model.json"),
    "no model": (lambda folder: (folder / "model.json").unlink(), "{}/model.json, found no such"),
    "no weights": (
        lambda folder: (folder / "weights.safetensors").unlink(),
        "weights in {}/weights.safetensors, found no such file",
    ),
    "cut weights": (
        lambda folder: os.truncate(folder / "weights.safetensors", 99),
        "weights in {}/weights.safetensors, found something else",
    ),
    "no statement": (
        lambda folder: (folder / "result.json").unlink(),
        "with {}/result.json, found no such file",
    ),
    "another model's words": (changed(vocabulary=["a"]), "weights.safetensors, found others"),
}


@pytest.mark.parametrize(("change", "message"), MODELS.values(), ids=MODELS)
def test_damaged_models_are_refused(tmp_path, model, change, message):
    shutil.copytree(model, tmp_path / "model")
    change(tmp_path / "model")
    data = make(tmp_path / "data.csv", rows(3))
    before = files(tmp_path)
    shown = call("predict", tmp_path / "model", data, "--out", tmp_path / "out.csv")
    assert shown.exit_code == 1
    told = plain(shown.stderr)
    assert unbroken(message.format(tmp_path / "model")) in unbroken(told)
    assert told.count("Expected") == 1, "no message within a message"
    assert "training again would spend epsilon again" in told or "version of adadps" in told
    assert files(tmp_path) == before


def test_a_folder_that_is_no_model_and_one_that_is_not_there(tmp_path, model):
    data = make(tmp_path / "data.csv", rows(3))
    for command in ("predict", "card", "report"):
        for folder, found in ((tmp_path, "no such file"), (tmp_path / "nowhere", "no such folder")):
            words = [command, folder, *([data] if command == "predict" else [])]
            words += ["--out", tmp_path / "out.csv"] if command != "card" else []
            shown = call(*words)
            assert shown.exit_code == 1
            told = plain(shown.stderr)
            assert unbroken(found) in unbroken(told)
            file = "model.json" if command == "predict" else "result.json"
            assert f"{folder}/{file},found" in unbroken(told)
            assert told.count("Expected") == 1


BAD_NEW = {
    "a column is missing": (
        b"title,age\nx,3\n",
        "a column 'country' in {}, found none: the model reads title, age, country. If it has",
    ),
    "a column of another name": (
        b"title,age,Countri\nx,3,de\n",
        "Did you mean 'Countri'? Then rename the column",
    ),
    "a column of texts of another name": (
        b"titel,age,country\nx,3,de\n",
        "Did you mean 'titel'? Then give --text NAME",
    ),
    "no number": (b"title,age,country\nx,y,de\n", "something else on line 2"),
    "an empty line": (b"title,age,country\nx,3,de\n\nx,3,de\n", "found line 3 empty"),
    "a bad row after good ones": (
        b"title,age,country\n" + b"x,3,de\n" * 5000 + b"x,3\n",
        "found 2 on line 5002",
    ),
    "predictions are there": (b"title,age,country,prediction\nx,3,de,a\n", "Rename it"),
}


@pytest.mark.parametrize(("content", "message"), BAD_NEW.values(), ids=BAD_NEW)
def test_bad_tables_get_no_predictions(tmp_path, model, content, message):
    (tmp_path / "new.csv").write_bytes(content)
    shown = call("predict", model, tmp_path / "new.csv", "--out", tmp_path / "out.parquet")
    assert shown.exit_code == 1
    assert unbroken(message.format(tmp_path / "new.csv")) in unbroken(shown.stderr)
    assert files(tmp_path) == ["new.csv"]


@pytest.mark.parametrize("cell", ["", "NA", "nan"])
def test_missing_numbers_are_refused_or_filled_at_prediction(tmp_path, model, cell):
    (tmp_path / "new.csv").write_text(f"title,age,country\ngood,{cell},de\n", encoding="utf-8")
    given = ("predict", model, tmp_path / "new.csv", "--out", tmp_path / "out.csv")
    for more in ((), ("--missing", "refuse")):
        shown = call(*given, *more)
        assert shown.exit_code == 1
        assert "--missing fill" in plain(shown.stderr)
    assert call(*given, "--missing", "fill").exit_code == 0


def test_another_text_column_at_prediction(tmp_path, model):
    (tmp_path / "new.csv").write_text("review,age,country\ngood,3,de\n", encoding="utf-8")
    given = ("predict", model, tmp_path / "new.csv", "--out", tmp_path / "out.csv")
    assert call(*given).exit_code == 1
    assert call(*given, "--text", "review").exit_code == 0


# Runs that are interrupted


@pytest.mark.parametrize(
    ("ending", "shared"), [(signal.SIGINT, False), (signal.SIGKILL, True)], ids=["int", "kill"]
)
def test_the_same_command_goes_on_and_leaves_only_the_model(tmp_path, ending, shared):
    data = make(tmp_path / "data.csv", rows(300))
    given = ["train", data, *COLUMNS, *LABEL, "--epsilon", "2", "--words", "100", "--json"]
    given += ["--epochs", "150", "--out", str(tmp_path / "model")]
    given += ["--ledger", str(tmp_path / "l")] if shared else []
    child = in_another_process(*given)
    deadline = time.monotonic() + 100
    while not [*tmp_path.glob("model.checkpoint/step-0*[1-9]*")] and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(ending)
    child.communicate(timeout=60)
    assert child.returncode in (130, -signal.SIGKILL)
    kept = [path.name for path in tmp_path.iterdir() if path.name.startswith("model")]
    assert kept == ["model.checkpoint"]
    assert "rows" not in " ".join(files(tmp_path)), "rows have no name, and go with the process"
    shown = call(*given)
    assert shown.exit_code == 0, shown.output
    privacy = json.loads(shown.stdout)["privacy"]
    assert privacy["epsilon"] <= 2
    assert privacy["steps"] <= privacy["steps_paid"]
    assert load_result(tmp_path / "model").privacy.steps == privacy["steps"]
    assert not (tmp_path / "model.checkpoint").exists()


def interrupted_run(tmp_path, monkeypatch, **other):
    """A run that is interrupted in its middle, within this process."""
    from adadps.training import stepper

    data = make(tmp_path / "data.csv", rows(60))
    asked = {
        "data": tmp_path / "data.csv",
        "texts": ("title",),
        "label": "kind",
        "epsilon": 8.0,
        "out": tmp_path / "model",
        "words": 50,
        "epochs": 10,
        "ledger": tmp_path / "l",
        "ledger_budget": 20.0,
    }
    take = stepper.DataStepper.take
    steps = []

    def stops(held, drawn, index):
        steps.append(drawn)
        if len(steps) == 6:
            raise KeyboardInterrupt
        take(held, drawn, index)

    with monkeypatch.context() as patched:
        patched.setattr(stepper.DataStepper, "take", stops)
        with pytest.raises(KeyboardInterrupt):
            train_from_table(TrainingRequest(**asked), lambda _: None)
    again = {**asked, "ledger_budget": None, **other}
    return TrainingRequest(**again), data


@pytest.mark.filterwarnings("ignore::adadps.errors.AssumedPublicWarning")
def test_another_command_does_not_go_on_with_an_interrupted_run(tmp_path, monkeypatch):
    other, _ = interrupted_run(tmp_path, monkeypatch, epsilon=4.0)
    from adadps.errors import ContractError

    with pytest.raises(ContractError, match="of a run that was interrupted"):
        train_from_table(other, lambda _: None)
    assert (tmp_path / "model.checkpoint").exists()
    assert not (tmp_path / "model").exists()


@pytest.mark.filterwarnings("ignore::adadps.errors.AssumedPublicWarning")
def test_what_others_have_put_into_the_folder_stays(tmp_path, monkeypatch):
    same, _ = interrupted_run(tmp_path, monkeypatch)
    note = tmp_path / "model.checkpoint" / "note.txt"
    note.write_text("mine", encoding="utf-8")
    said = []
    train_from_table(same, said.append)
    assert any("Resuming from step 5 of" in line for line in said)
    assert (tmp_path / "model" / "model.json").exists()
    assert files(tmp_path / "model.checkpoint") == ["note.txt"]


def test_a_named_checkpoint_stays(tmp_path, monkeypatch):
    data = make(tmp_path / "data.csv", rows(60))
    shown = train(data, tmp_path / "model", *COLUMNS, *LABEL, "--checkpoint", tmp_path / "run")
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "run" / "ledger").exists()
    assert not (tmp_path / "model.checkpoint").exists()


def test_large_models_are_kept_less_often(tmp_path):
    folder = TableRunFolder(tmp_path, None, is_ours=True)
    assert folder.checkpoints(steps=400, weights=1000).every == 8
    assert folder.checkpoints(steps=400, weights=10**8).every == 50
    assert folder.checkpoints(steps=3, weights=1000).every == 1


def test_what_was_paid_without_a_checkpoint_is_told_after_an_interruption(tmp_path):
    folder = TableRunFolder(tmp_path / "run", None, is_ours=True)
    assert "nothing was spent" in left_in_words(folder, "again")
    (tmp_path / "run").mkdir()
    with DiskLedger(tmp_path / "run" / "ledger", budget=Budget(9.0, 1e-5)) as ledger:
        ledger.open("first", Relation.ADD_OR_REMOVE_ONE, Accountant.RDP)
        for _ in range(3):
            ledger.authorise(GaussianDpEvent(30.0))
    told = left_in_words(folder, "again")
    assert "no step is kept, and 3 steps stay paid for in " in told
    assert "nothing was spent" not in told


def test_what_is_read_off_the_data_is_said_in_one_line(tmp_path):
    make(tmp_path / "data.csv", rows(60))
    said = []
    request = TrainingRequest(
        data=tmp_path / "data.csv",
        numeric=("age",),
        categorical=("country",),
        label="kind",
        epsilon=8.0,
        epochs=1,
        out=tmp_path / "model",
    )
    told = "bounds of 'age', levels of 'country', the classes, the number of examples"
    with pytest.warns(AssumedPublicWarning, match=told) as caught:
        train_from_table(request, said.append)
    assert len(caught) == 1
    assert not any("Read off" in line for line in said)
