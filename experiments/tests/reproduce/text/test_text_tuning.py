"""Tuning: all trials are recorded, the highest wins, none is repeated, no test text is read."""

import json
import zlib
from dataclasses import replace

import pytest

from adadps.errors import DataError
from adadps_experiments.reproduce.records import RecordFile
from adadps_experiments.reproduce.results import read_winners
from adadps_experiments.reproduce.text import jobs, recipes, tuning
from adadps_experiments.reproduce.text.experiments import BEST, PAPER, PLAIN, Experiment, TableLine
from adadps_experiments.reproduce.text.methods import TEXT_METHODS
from adadps_experiments.reproduce.text.problem import ONE_PERCENT, PublicSource
from support.small_corpora import TINY, UnreadableTexts, forget, put_in_place, small_corpus

LINES = (
    TableLine("imdb", PAPER, "dp-sgd", 2.0),
    TableLine("imdb", PAPER, "dp-sgd", 8.0),  # the same trials serve all epsilons
    TableLine("imdb", BEST, "dp-sgd", 2.0),
    TableLine("imdb", BEST, "adadps", 2.0),
    TableLine("imdb", BEST, "public-only", 2.0),
    TableLine(
        "imdb", BEST, "public-only", 2.0, PublicSource(proxy=20)
    ),  # settings for a few examples ...
    TableLine(
        "imdb", BEST, "public-only", 2.0, PublicSource(proxy=8000)
    ),  # ... are not those for many
)
SMALL = Experiment("small", "A small experiment", LINES, LINES[:1])
METHODS = {
    "paper | dp-sgd",
    "best for DP-SGD | dp-sgd",
    "best for DP-SGD | adadps",
    "best for DP-SGD | public-only | 1.00% of the training texts",
    "best for DP-SGD | public-only | 8,000 texts of another source",
}
TRIALS = 12 * 3 + 16 * len(METHODS) - 3
"""Three trials of DP-SGD on its best features are among those that chose the features."""


def score_of(description):
    """Return a number that depends on the whole job, and on nothing else."""
    return zlib.crc32(json.dumps(description, sort_keys=True).encode()) / 2**32


def made_up(job):
    """Return a record without training."""
    described = job.describe()
    return {"job": described, "values": {"accuracy": score_of(described)}}


@pytest.fixture
def ran(monkeypatch):
    """The jobs that are run, without training and within their grids (see test_grid_edges.py)."""
    monkeypatch.setattr(tuning, "STEPS_OUTSIDE", 0)
    yield put_in_place(monkeypatch, imdb=small_corpus(), so_titles=small_corpus(several=True))
    forget()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(tuning, "run", made_up)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trials.jsonl"


@pytest.mark.usefixtures("quick")
def test_all_trials_are_kept_and_the_highest_wins(ran, path):
    found = tuning.tune(SMALL, RecordFile(path))
    again = RecordFile(path)
    assert len(again) == len(ran) == TRIALS
    mine = found["datasets"]["imdb"]
    assert set(mine["methods"]) == METHODS
    for name, entry in {**mine["methods"], "features": mine["features"]}.items():
        scores = [trial["accuracy"] for trial in entry["trials"]]
        assert entry["accuracy"] == max(scores)
        best = entry["trials"][scores.index(max(scores))]
        if name == "features":
            assert len(scores) == 36
            assert str(recipes.Recipe(**entry["winner"])) == best["features"]
        else:
            assert len(scores) == 16
            assert entry["winner"] == best["setting"]
            assert {trial["features"] for trial in entry["trials"]} == {entry["features"]}
    kept_scores = {record["values"]["accuracy"] for record in again._records.values()}
    assert {
        trial["accuracy"]
        for entry in (*mine["methods"].values(), mine["features"])
        for trial in entry["trials"]
    } == kept_scores


@pytest.mark.usefixtures("quick")
def test_trials_are_alike_for_all_methods(ran, path):
    """Same features, batches, steps, split and epsilon; settings are those of the grid."""
    found = tuning.tune(SMALL, RecordFile(path))
    best = recipes.Recipe(**found["datasets"]["imdb"]["features"]["winner"])
    for job in ran:
        described = job.describe()
        assert described["split"] == "validation"
        assert described["steps"] == TINY.tuning_steps
        assert described["batch"] == TINY.batch
        assert described["seed"] == tuning.TUNING_SEED
        assert described["epsilon"] == (TINY.tuned_at if job.text_method.private else None)
    for candidate in ran[:36]:
        assert candidate.method == "dp-sgd"
        assert candidate.recipe in recipes.CANDIDATES
    for job in ran[36:]:
        assert job.recipe in (best, recipes.PAPER)
        assert job.method == "dp-sgd" or job.recipe == best
        assert job.setting in TEXT_METHODS[job.method].grid(TINY.lengths)
    tried = [job.setting for job in ran[36:] if job.method == "adadps"]
    assert tried == TEXT_METHODS["adadps"].grid(TINY.lengths)


@pytest.mark.usefixtures("quick")
def test_nothing_is_run_again(ran, path):
    first = tuning.tune(SMALL, RecordFile(path))
    content = path.read_bytes()
    ran.clear()
    assert tuning.tune(SMALL, RecordFile(path)) == first
    assert ran == []
    assert path.read_bytes() == content


@pytest.mark.parametrize("after", [0, 36, TRIALS - 1])
def test_what_was_interrupted_goes_on(ran, path, monkeypatch, after):
    def stopped(job):
        if len(ran) == after:
            raise KeyboardInterrupt
        return made_up(job)

    monkeypatch.setattr(tuning, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(SMALL, RecordFile(path))
    assert len(RecordFile(path)) == after
    before = [json.dumps(job.describe(), sort_keys=True) for job in ran]
    ran.clear()
    monkeypatch.setattr(tuning, "run", made_up)
    found = tuning.tune(SMALL, RecordFile(path))
    since = [json.dumps(job.describe(), sort_keys=True) for job in ran]
    assert len(before) + len(since) == len({*before, *since}) == TRIALS
    whole = tuning.tune(SMALL, RecordFile(path.with_name("another.jsonl")))
    assert found == whole


@pytest.mark.usefixtures("quick", "ran")
def test_winners_of_other_problems_are_kept(path):
    other = Experiment("tags", "Tags", (TableLine("so-titles", PAPER, "dp-adam", 2.0),), ())
    more = Experiment("more", "More", (TableLine("imdb", PAPER, "dp-adam", 2.0),), ())
    first = tuning.tune(SMALL, RecordFile(path))
    held = json.loads(json.dumps(first))
    found = tuning.tune(more, RecordFile(path), tuning.tune(other, RecordFile(path), held))
    assert set(found["datasets"]) == {"imdb", "so-titles"}
    assert set(found["datasets"]["imdb"]["methods"]) == {*METHODS, "paper | dp-adam"}
    for name in METHODS:
        expected = first["datasets"]["imdb"]["methods"][name]
        assert found["datasets"]["imdb"]["methods"][name] == expected


@pytest.mark.usefixtures("quick")
def test_features_are_chosen_only_where_a_line_has_them(ran, path):
    fixed = Experiment("fixed", "", (TableLine("imdb", PAPER, "adam", 2.0),), ())
    found = tuning.tune(fixed, RecordFile(path))
    assert {job.method for job in ran} == {"adam"}
    assert "features" not in found["datasets"]["imdb"]
    held = tuning.tune(SMALL, RecordFile(path))["datasets"]["imdb"]["features"]
    again = tuning.tune(fixed, RecordFile(path), {"datasets": {"imdb": {"features": held}}})
    assert again["datasets"]["imdb"]["features"] == held


@pytest.mark.usefixtures("quick")
def test_a_problem_that_borrows_settings_is_not_tuned(ran, path):
    lines = (TableLine("imdb-private-words", PAPER, "dp-sgd", 2.0),)
    found = tuning.tune(Experiment("borrowed", "Borrowed", lines, ()), RecordFile(path))
    assert {job.dataset for job in ran} == {"imdb"}
    [entry] = found["datasets"]["imdb"]["methods"].values()
    assert tuning.tuned_setting(lines[0], found) == tuning.TunedSetting(
        recipes.PAPER, entry["winner"]
    )


@pytest.mark.usefixtures("quick", "ran")
def test_lines_find_their_winners(path):
    found = json.loads(
        json.dumps(tuning.tune(SMALL, RecordFile(path)))
    )  # as it is read from a file
    mine = found["datasets"]["imdb"]
    best = recipes.Recipe(**mine["features"]["winner"])
    for line in LINES:
        choice = tuning.tuned_setting(line, found)
        assert choice.recipe == (recipes.PAPER if line.features == PAPER else best)
        assert choice.setting in TEXT_METHODS[line.method].grid(TINY.lengths)
    few, many = (tuning.tuned_setting(line, found) for line in LINES[-2:])
    one_percent = tuning.tuned_setting(
        TableLine("imdb", BEST, "public-only", 2.0, ONE_PERCENT), found
    )
    assert few == one_percent
    name = "best for DP-SGD | public-only | 8,000 texts of another source"
    assert many.setting == mine["methods"][name]["winner"]


def test_no_test_text_is_read(path, monkeypatch, request):
    """With real training and an unreadable test part, winners are found all the same."""
    request.addfinalizer(forget)
    monkeypatch.setattr(jobs, "_sigma", lambda *_: 1.5)
    monkeypatch.setattr(recipes, "CANDIDATES", recipes.CANDIDATES[:1])
    monkeypatch.setitem(TEXT_METHODS, "dp-sgd", _with_few_settings("dp-sgd"))
    monkeypatch.setitem(TEXT_METHODS, "adadps-public", _with_few_settings("adadps-public"))
    spoiled = replace(small_corpus(), test=UnreadableTexts())
    ran = put_in_place(monkeypatch, imdb=spoiled)
    lines = [TableLine("imdb", PAPER, name, 2.0) for name in ("dp-sgd", "adadps-public", "adam")]
    found = tuning.tune(Experiment("small", "", tuple(lines), ()), RecordFile(path))
    assert len(ran) >= 2 + 2 + 16  # and perhaps some beyond the edges
    assert found["datasets"]["imdb"]["methods"]["paper | adam"]["accuracy"] > 0.8
    held_out = len(spoiled.for_tuning().test)
    for record in RecordFile(path)._records.values():  # shares of the texts that were held out
        share = record["values"]["accuracy"] * held_out
        assert share == pytest.approx(round(share), abs=1e-6)
    with pytest.raises(AssertionError, match="test texts were read"):
        jobs.run(replace(ran[-1], tuning=False))


def _with_few_settings(name):
    method = TEXT_METHODS[name]
    return replace(method, grid=lambda lengths: method.grid(lengths)[:2])


def test_while_tuning_only_some_words_are_kept(monkeypatch, request):
    request.addfinalizer(forget)
    put_in_place(monkeypatch, imdb=small_corpus())
    monkeypatch.setitem(jobs.SIZES, "imdb", replace(TINY, narrow=7))
    tuned = jobs._problem_of("imdb", recipes.PAPER, ONE_PERCENT, 0, True)
    whole = jobs._problem_of("imdb", recipes.PAPER, ONE_PERCENT, 0, False)
    assert tuned.corpus.train.counts.shape[1] == 7
    assert whole.corpus.train.counts.shape[1] == 40


def spoiled(winners, *keys, value=None):
    """Return the same winners with one entry removed or replaced."""
    copy = json.loads(json.dumps(winners))
    place = copy
    for key in keys[:-1]:
        place = place[key]
    if value is None:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return copy


GOOD = {
    "datasets": {
        "imdb": {
            "features": {"winner": {"binary": True, "power": 1.0}},
            "methods": {
                "best for DP-SGD | dp-sgd": {
                    "features": "binary x public IDF^1, L2 per text",
                    "winner": {"clip": 0.5, "length": 1.0},
                }
            },
        }
    }
}
METHOD = ("datasets", "imdb", "methods", "best for DP-SGD | dp-sgd")
MISSING = {
    "the problem": spoiled(GOOD, "datasets", "imdb"),
    "the features": spoiled(GOOD, "datasets", "imdb", "features"),
    "the method": spoiled(GOOD, "datasets", "imdb", "methods", "best for DP-SGD | dp-sgd"),
    "the winner": spoiled(GOOD, "datasets", "imdb", "features", "winner"),
    "a recipe": spoiled(GOOD, "datasets", "imdb", "features", "winner", value={"colour": 1}),
    "a table": spoiled(GOOD, "datasets", "imdb", "methods", value=7),
    "features of a method": spoiled(GOOD, *METHOD, "features"),
    "a setting": spoiled(GOOD, *METHOD, "winner"),
}


def test_recorded_settings_are_found():
    choice = tuning.tuned_setting(TableLine("imdb", BEST, "dp-sgd", 1.5), GOOD)
    assert choice.recipe == recipes.Recipe(binary=True, power=1.0)
    assert choice.setting == {"clip": 0.5, "length": 1.0}


@pytest.mark.parametrize("winners", MISSING.values(), ids=MISSING)
def test_settings_that_were_not_recorded_are_missed(winners):
    with pytest.raises(DataError, match=r"settings for best for DP-SGD \| dp-sgd on imdb.*--tune"):
        tuning.tuned_setting(TableLine("imdb", BEST, "dp-sgd", 1.5), winners)


@pytest.mark.parametrize("change", [{"power": 2.0}, {"binary": False}, {"relative": True}])
def test_settings_found_on_other_features_are_refused(change):
    """The features were chosen again after the methods had been tuned, in another call."""
    recipe = {"binary": True, "power": 1.0, **change}
    changed = spoiled(GOOD, "datasets", "imdb", "features", "winner", value=recipe)
    with pytest.raises(DataError, match=r"settings for best for DP-SGD \| dp-sgd on imdb.*--tune"):
        tuning.tuned_setting(TableLine("imdb", BEST, "dp-sgd", 1.5), changed)


@pytest.mark.usefixtures("ran")
def test_plain_features_are_the_best_without_public_idf(path, monkeypatch):
    def better_with_idf(job):
        record = made_up(job)
        record["values"]["accuracy"] = (record["values"]["accuracy"] + bool(job.recipe.power)) / 2
        return record

    monkeypatch.setattr(tuning, "run", better_with_idf)
    lines = (TableLine("imdb", PLAIN, "dp-sgd", 2.0), TableLine("imdb", BEST, "dp-sgd", 2.0))
    found = tuning.tune(Experiment("small", "", lines, ()), RecordFile(path))
    held = found["datasets"]["imdb"]["features"]
    plain = {
        trial["accuracy"]: trial["features"]
        for trial in held["trials"]
        if "IDF" not in trial["features"]
    }
    assert len(plain) == 6
    recipe = tuning.tuned_setting(lines[0], found).recipe
    assert str(recipe) == plain[max(plain)]
    assert tuning.tuned_setting(lines[1], found).recipe.power > 0
    assert found["datasets"]["imdb"]["methods"]["plain | dp-sgd"]["features"] == str(recipe)


NO_WINNERS = {
    "rows": b'[{"method": "dp-sgd"}]',
    "a number": b"7",
    "no data sets": b'{"protocol": "none"}',
    "half of it": b'{"datasets": {"imdb"',
    "nothing": b"",
    "a picture": b"\x89PNG\r\n\x1a\n\xff\xfe",
    "NaN": b'{"datasets": {"imdb": NaN}}',
}


@pytest.mark.parametrize("content", NO_WINNERS.values(), ids=NO_WINNERS)
def test_other_files_are_no_winners(tmp_path, content):
    file = tmp_path / "winners.json"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"winners\.json"):
        read_winners(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.json"):
        read_winners(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    "setting",
    [{"clip": "abc", "length": 1.0}, {"clip": -1.0, "length": 1.0}, {"clip": True}, {}, 3],
)
def test_settings_that_are_no_numbers_are_refused(setting):
    known = {"features": str(recipes.PAPER), "winner": setting}
    held = {"datasets": {"imdb": {"methods": {"paper | dp-sgd": known}}}}
    with pytest.raises(DataError, match="Expected recorded settings"):
        tuning.tuned_setting(TableLine("imdb", PAPER, "dp-sgd", 2.0), held)
