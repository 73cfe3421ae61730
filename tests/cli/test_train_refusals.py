"""What `adadps train` refuses before anything is paid, and how it goes on after a crash."""

import json
import time

import pytest

from adadps import DiskLedger, load_result
from support.commands import arguments, files, in_another_process, plain, rows, train, write


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "data.csv", rows(400))


def test_the_text_column_as_labels_is_refused(data, tmp_path):
    shown = train(data, tmp_path / "out", "--label", "text")
    assert shown.exit_code == 2
    assert "different columns" in plain(shown.stderr)


@pytest.mark.parametrize("label", ["jane.doe@example.org", "NaN"])
def test_a_label_of_one_person_does_not_become_a_class(tmp_path, label):
    content = [*rows(200), ["200", "apple and saw", label]]
    content += [["201", "apple and saw", label]] * (10 if label == "NaN" else 0)
    shown = train(write(tmp_path / "d.csv", content), tmp_path / "out")
    assert shown.exit_code == 1
    assert "on line 202" in plain(shown.stderr)
    assert label not in shown.stdout + shown.stderr
    assert not (tmp_path / "out").exists()


def test_strict_reads_nothing_off_the_data(data, tmp_path):
    assert train(data, tmp_path / "out", "--strict").exit_code == 2
    declared = ("--strict", "--classes", "fruit,tools", "--examples", 400, "--epochs", 1)
    assert train(data, tmp_path / "out", *declared).exit_code == 0


def test_training_texts_are_a_test_like_any_other(data, tmp_path):
    """A refusal would tell whoever sees the exit code that they were trained on."""
    shown = train(data, tmp_path / "out", "--test", data, "--epochs", 1, "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["history"][1]["value"] == 0.5


def test_the_check_finds_training_texts_however_they_are_written(data, tmp_path):
    """Other marks, another column, another format: the same texts and labels."""
    changed = [
        {"id": float(number), "text": f" {text.upper()}!", "label": label}
        for number, (_, text, label) in enumerate([*rows(300), *rows(100, first=1000)])
    ]
    test = tmp_path / "test.jsonl"
    test.write_text("\n".join(json.dumps(row) for row in changed), encoding="utf-8")
    shown = train(data, tmp_path / "out", "--test", test, "--check-overlap")
    assert shown.exit_code == 0
    assert "300 of 400 held-out rows stand in the training table." in plain(shown.stderr)


@pytest.mark.parametrize("folder", ["out", "out/inside", "."])
def test_the_model_and_the_run_have_different_places(data, tmp_path, folder):
    shown = train(data, tmp_path / "out", "--checkpoint", tmp_path / folder)
    assert shown.exit_code == 2
    assert "different places" in plain(shown.stderr)
    assert files(tmp_path) == ["data.csv"]


def test_a_killed_training_goes_on_and_keeps_to_its_epsilon(data, tmp_path):
    more = ("--checkpoint", tmp_path / "run", "--epochs", 100, "--epsilon", 1)
    more += ("--ledger", tmp_path / "ledger", "--ledger-budget", 3)
    for _ in range(2):
        process = in_another_process(*arguments(data, tmp_path / "out", *more))
        for _ in range(600):
            time.sleep(0.05)
            if sorted(tmp_path.glob("run/step-0*"))[1:] or process.poll() is not None:
                break
            if any(path.name > "step-00000040" for path in tmp_path.glob("run/step-0*")):
                break
        process.kill()
        process.communicate()
    shown = train(data, tmp_path / "out", *more, "--json")
    assert shown.exit_code == 0
    privacy = json.loads(shown.stdout)["privacy"]
    with DiskLedger(tmp_path / "ledger") as ledger:
        assert ledger.entries == privacy["steps_paid"] >= privacy["steps"]
    assert privacy["epsilon"] <= 1
    assert load_result(tmp_path / "out").privacy.steps == privacy["steps"]
