"""`adadps doctor`: from a public table to advice, and clear errors."""

import csv
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adadps import Budget, load_result
from adadps.cli.main import app
from adadps.estimators.doctor.tables import DoctorRequest, TrainableMethod, next_command
from adadps.estimators.planner.plan import GivenSettings, choose_settings
from adadps.types import Method

runner = CliRunner()
FRUIT, TOOLS = "apple pear plum cherry juice", "hammer saw nail drill steel"


def plain(text):
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))


def write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def texts(count, labels=("fruit", "tools")):
    for number in range(count):
        words = (FRUIT, TOOLS)[number % 2].split()
        yield [f"the {words[number % 5]} and the {words[number % 3]}", labels[number % 2]]


@pytest.fixture
def public(tmp_path):
    return write(tmp_path / "public.csv", [["text", "label"], *texts(60)])


def ask(public, *more):
    given = ["doctor", public, "--text", "text", "--label", "label", "--words", 3000]
    usual = ["--examples", 2000, "--epsilon", 1, "--folds", 3, "--steps", 5]
    return runner.invoke(app, [str(part) for part in (*given, *usual, *more)])


@pytest.fixture
def counts(tmp_path):
    return write(
        tmp_path / "my counts.csv", [["word", "frequency"], ["the", 0.09], ["apple", 0.01]]
    )


def test_a_table_of_all_ways_to_train_a_verdict_and_the_next_command(public):
    shown = ask(public)
    assert shown.exit_code == 0, shown.output
    assert shown.stderr == "", "quiet when piped"
    said = plain(shown.stdout)
    assert "Verdict: " in said
    assert "nothing was spent" in said
    assert "ε" not in said, "no epsilon is shown: none was spent"
    for method in ("dp-sgd", "dp-sgd-weighted", "adadps", "adadps-two-sided"):
        assert f"│ {method} " in said
    assert "sharper" not in said
    assert "What else may help, from results on other data: Embeddings: " in said
    command = shown.stdout.splitlines()[-1]
    assert command.startswith("adadps train private.csv --text text --label label --classes ")
    *lines, _command = shown.stdout.splitlines()
    assert max(map(len, lines)) <= 80


def test_terms_of_the_theorem_are_shown_when_asked_for(public):
    shown = ask(public, "--terms")
    assert shown.exit_code == 0, shown.output
    *lines, _command = shown.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for name in ("D", "R", "noise", "bound", "sharper"):
        assert any(line.startswith(f"{name}: ") for line in lines), "a line explains each"
        assert any(f"┃ {name} " in line for line in lines)


def test_the_help_has_groups_and_an_example():
    shown = plain(runner.invoke(app, ["doctor", "--help"], env={"COLUMNS": "80"}).output)
    for group in ("The public table", "The private run that is planned", "What is shown"):
        assert group in shown
    assert "adadps doctor pilot.csv --text review" in shown


def test_a_bar_tells_people_what_is_tried(public, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    shown = ask(public)
    said = plain(shown.stderr)
    assert "simulating" in said
    assert "16/16" in said, "3 folds and the terms of 4 candidates"
    assert "simulating" not in shown.stdout


def test_json_for_other_programs(public, counts):
    told = json.loads(ask(public, "--side", counts, "--json").stdout)
    ways = [(one["method"], one["word_list"]) for one in told["findings"]]
    informed = ("dp-sgd-weighted", "adadps", "adadps-two-sided")
    assert ways == [
        ("dp-sgd", "none"),
        *[(method, "wordfreq") for method in informed],
        *[(method, "my counts.csv") for method in informed],
    ]
    assert told["planned"] == {"examples": 2000, "epsilon": 1.0, "delta": 1 / 20_000}
    assert told["public_rows"] == 60
    assert [line.split(":")[0] for line in told["further"]] == ["Embeddings", "Public texts"]
    assert told["next_command"].startswith("adadps train ")
    assert (
        f" --classes {','.join(sorted({label for _, label in texts(60)}))} " in told["next_command"]
    )


def test_where_nothing_was_shown_to_help_dp_sgd_is_advised(tmp_path):
    rows = [["apple pear", "ab"[number // 2 % 2]] for number in range(60)]
    shown = ask(write(tmp_path / "noise.csv", [["text", "label"], *rows]), "--json")
    told = json.loads(shown.stdout)
    assert told["verdict"] == "no gain could be shown"
    assert told["candidate"] == "DP-SGD"
    assert " --method dp-sgd " in told["next_command"]


RULE = choose_settings(examples=500, budget=Budget(2, 1e-5), gradient_norm=1)
ASKED = DoctorRequest(public=Path("p.csv"), text="t", label="l", examples=500, epsilon=2)


@pytest.mark.parametrize(
    ("labels", "listed"),
    [
        (["it's", "so so", "-1"], "-1,it's,so so"),
        (map(str, range(10, 60)), ",".join(map(str, range(10, 60)))),
        (map(str, range(51)), None),
        (["a,b", "c"], None),
        (["a\nb", "c"], None),
        (["a", "a "], None),
        ([" a", "b"], None),
    ],
)
def test_public_labels_are_declared_as_classes_where_the_option_can_name_them(labels, listed):
    words = shlex.split(next_command(ASKED, TrainableMethod(Method.DP_SGD), RULE, list(labels)))
    found = words[words.index("--classes") + 1] if "--classes" in words else None
    assert found == listed


def test_the_reason_to_be_public_is_left_to_a_person():
    words = shlex.split(next_command(ASKED, TrainableMethod(Method.ADADPS, Path("mine.csv")), RULE))
    assert words[words.index("--side-because") + 1] == "WHY IT IS PUBLIC"


@pytest.mark.parametrize("negation", [True, False])
def test_the_next_command_reads_texts_as_the_doctor_did(negation):
    asked = replace(ASKED, negation=negation)
    words = shlex.split(next_command(asked, TrainableMethod(Method.DP_SGD_WEIGHTED), RULE))
    assert ("--without-negation" in words) is not negation


@pytest.mark.parametrize(
    "way", [TrainableMethod(Method.DP_SGD), TrainableMethod(Method.DP_SGD_WEIGHTED), "file"]
)
def test_the_next_command_trains_what_was_planned(way, public, counts, tmp_path, monkeypatch):
    """Same method, side information, examples, epsilon, delta, batch and steps."""
    monkeypatch.chdir(tmp_path)
    way = TrainableMethod(Method.ADADPS, counts) if way == "file" else way
    asked = DoctorRequest(
        public=public, text="text", label="label", examples=300, epsilon=2.5, delta=1e-4,
        steps=7, batch_size=37.5, words=3000,
    )  # fmt: skip
    planned = choose_settings(
        examples=300, budget=Budget(2.5, 1e-4), gradient_norm=1,
        given=GivenSettings(batch_size=37.5, steps=7),
    )  # fmt: skip
    write(tmp_path / "private.csv", [["text", "label"], *texts(300)])
    program, *words = shlex.split(
        next_command(asked, way, planned, [label for _, label in texts(60)])
    )
    assert program == "adadps"
    shown = runner.invoke(app, [*words, "--json"])
    assert shown.exit_code == 0, shown.output
    result = load_result(tmp_path / "model")
    assert result.settings["method"] == way.method.value
    assert result.privacy.steps == 7
    assert result.privacy.noise_multiplier == planned.noise_multiplier
    assert (result.privacy.epsilon, result.privacy.delta) == (pytest.approx(2.5, abs=0.01), 1e-4)
    sources = str(result.describe())
    assert ("my counts.csv" in sources) == (way.side is not None)


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--text", "body"], 1, "Expected a column 'body'"),
        (["--text", "label"], 2, "different columns"),
        (["--epsilon", 0], 2, "epsilon"),
        (["--delta", 2], 2, "delta"),
        (["--folds", 13], 1, "between 3 and 12 folds"),
        (["--examples", 100, "--batch-size", 500], 2, "the 100 examples"),
        (["--language", "xx"], 1, "language"),
        (["--side", "absent.csv"], 1, "absent.csv"),
    ],
)
def test_bad_requests_end_in_one_clear_error(public, more, code, said):
    shown = ask(public, *more)
    assert shown.exit_code == code, shown.output
    assert said in plain(shown.stderr)
    assert shown.stdout == ""


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (list(texts(39)), "at least 40 public examples, found 39"),
        (list(texts(60, labels=("same", "same"))), "at least two classes, found 1"),
        ([["¿¡ ¿¡", str(number % 2)] for number in range(60)], "words of the vocabulary"),
    ],
)
def test_public_tables_that_tell_nothing_are_refused(tmp_path, rows, said):
    shown = ask(write(tmp_path / "odd.csv", [["text", "label"], *rows]))
    assert shown.exit_code == 1, shown.output
    assert said in plain(shown.stderr)


def test_counts_in_place_of_frequencies_are_refused(public, tmp_path):
    file = write(tmp_path / "counts.csv", [["word", "frequency"], ["the", 50_000], ["apple", 300]])
    shown = ask(public, "--side", file)
    assert shown.exit_code == 1
    assert "found a sum of 50300. Divide counts by their total." in plain(shown.stderr)


def test_files_of_the_same_name_are_refused(public, tmp_path):
    (tmp_path / "other").mkdir()
    rows = [["word", "frequency"], ["the", 0.9]]
    first, second = (write(place / "a.csv", rows) for place in (tmp_path, tmp_path / "other"))
    shown = ask(public, "--side", first, "--side", second)
    assert shown.exit_code == 2
    assert "different names" in plain(shown.stderr)


@pytest.mark.parametrize("features", ["words", "embeddings", "both"])
def test_the_doctor_tries_every_form_of_texts(public, features):
    told = json.loads(ask(public, "--features", features, "--json").stdout)
    tried = {finding["method"] for finding in told["findings"]}
    assert ("dp-sgd-weighted" in tried) is (features != "embeddings")
    assert f"--features {features}" in told["next_command"]


def test_public_texts_give_words_and_vectors(public, tmp_path):
    """From 1,000 texts on, vectors are fitted to them; the next command has them too."""
    corpus = write(tmp_path / "corpus.csv", [["text"], *([row[0]] for row in texts(1200))])
    shown = ask(public, "--public", corpus, "--json")
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    lists = {one["word_list"] for one in told["findings"]}
    assert lists == {"none", "corpus.csv"}
    if "--method dp-sgd " not in told["next_command"]:
        assert f"--public {corpus} --public-because" in told["next_command"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--features", "embeddings"), "Leave one of them out"),
        (("--side", "list.csv"), "Leave one of them out"),
        ((), "Expected words in the"),
    ],
)
def test_public_texts_that_cannot_be_used_are_refused(public, tmp_path, more, why):
    corpus = write(tmp_path / "corpus.csv", [["text"], ["?"], ["!"]])
    shown = ask(public, "--public", corpus, *more)
    assert shown.exit_code != 0
    assert why in plain(shown.stderr)


def test_the_table_that_is_judged_is_not_its_own_public_texts(public):
    shown = ask(public, "--public", public)
    assert shown.exit_code == 2
    assert "found the same table" in plain(shown.stderr)


def test_the_doctor_does_not_choose_on_private_rows(public):
    shown = ask(public, "--features", "choose")
    assert shown.exit_code == 2
    assert "looks at private rows" in plain(shown.stderr)
