"""The command `adadps reproduce` on text: refusals, a full run, and its repetition."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adadps.cli.main import app
from adadps.errors import DataError
from adadps.files import write_json
from adadps_experiments.commands.reproduce import NEEDED, _needed
from adadps_experiments.reproduce import published
from adadps_experiments.reproduce.results import read_winners
from adadps_experiments.reproduce.text import jobs, recipes, tables, tuning
from adadps_experiments.reproduce.text.experiments import BEST, EXPERIMENTS, PAPER
from adadps_experiments.reproduce.text.methods import TEXT_METHODS
from support.small_corpora import TINY, forget, put_in_place, small_corpus

runner = CliRunner()


def called(*words):
    return runner.invoke(app, ["reproduce", *map(str, words)])


def said(shown):
    """Return standard error on one line."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", shown.stderr))


def recorded(*left_out):
    """Return the first setting of every grid, as --tune would write it."""
    best = recipes.Recipe(binary=True, power=1.0)
    methods = {
        f"{features} | {name}{where}": {
            "features": str(recipe),
            "winner": method.grid(TINY.lengths)[0],
        }
        for features, recipe in ((PAPER, recipes.PAPER), (BEST, best))
        for name, method in TEXT_METHODS.items()
        for where in ("", " | 1.00% of the training texts")
        if name not in left_out
    }
    features = {"winner": {"binary": True, "power": 1.0}}
    return {"datasets": {"imdb": {"features": features, "methods": methods}}}


@pytest.fixture
def winners(tmp_path):
    path = tmp_path / "winners.json"
    path.write_text(json.dumps(recorded()), encoding="utf-8")
    return path


@pytest.fixture
def needed(monkeypatch):
    """The names of the data sets that are requested; nothing is fetched."""
    names = []
    monkeypatch.setattr("adadps_experiments.commands.reproduce.get_if_absent", names.extend)
    return names


@pytest.fixture
def ran(monkeypatch, needed):
    """A synthetic problem in place of IMDB, without the accounting, which takes seconds."""
    monkeypatch.setattr(jobs, "_sigma", lambda *_: 1.5)
    monkeypatch.setattr(published, "_epsilon", lambda *_: 7.25)
    monkeypatch.setattr(tables, "_epsilon", lambda _n, _b, _sigma, steps, _delta: steps / 20)
    yield put_in_place(monkeypatch, imdb=small_corpus())
    forget()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "found 'nothing'. Known: toy, imdb"),
        (["IMDB"], "found 'IMDB'"),
        (["imdb", "--seeds", "0"], "Expected at least one seed, found 0"),
        (["imdb", "--dataset", "mnist"], "found 'mnist'. It has: imdb"),
        (["imdb", "--workers", "0"], "Expected at least one worker, found 0. Use --workers 1."),
        (["toy", "--workers", "-2"], "Expected at least one worker, found -2"),
        (["moments", "--workers", "2"], "an option that 'moments' has, found --workers"),
        (["imdb", "--seeds", "-1", "--quick"], "Expected at least one seed, found -1"),
        (["imdb", "--tune", "--winners", "w.json"], "Expected --tune or --winners, found both"),
        (["imdb", "--tune", "--quick"], "Expected --tune or --quick, found both"),
        (["imdb", "--tune", "--seeds", "3"], "Expected --tune or --seeds, found both"),
        (["imdb", "--tune", "--plot", "p.png"], "Expected --tune or --plot, found both"),
        (["toy", "--tune", "--quick"], "Expected --tune or --quick, found both"),
        (["toy", "--tune", "--seeds", "3"], "Expected --tune or --seeds, found both"),
        (["toy", "--tune", "--plot", "p.png"], "Expected --tune or --plot, found both"),
        (["toy", "--winners", "w.json"], "an option that 'toy' has, found --winners"),
        (["toy", "--dataset", "imdb"], "an option that 'toy' has, found --dataset"),
        (["toy", "--methods", "sgd"], "an option that 'toy' has, found --methods"),
        (["imdb", "--recorded"], "an option that 'imdb' has, found --recorded"),
        (["mnist-ae", "--tune", "--recorded"], "Expected --tune or --recorded, found both"),
        (["mnist-ae", "--tune", "--seeds", "3"], "Expected --tune or --seeds, found both"),
        (["moments", "--tune"], "an option that 'moments' has, found --tune"),
        (["moments", "--seeds", "2"], "an option that 'moments' has, found --seeds"),
        (["moments", "--winners", "w.json"], "an option that 'moments' has, found --winners"),
        (["moments", "--dataset", "imdb"], "an option that 'moments' has, found --dataset"),
    ],
)
def test_what_cannot_be_meant_is_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = called(*words)
    assert shown.exit_code == 2
    assert list(tmp_path.iterdir()) == []
    assert message in said(shown)


def test_a_file_of_winners_that_is_not_there(ran, tmp_path):
    shown = called("imdb", "--winners", tmp_path / "nowhere.json", "--json", tmp_path / "rows.json")
    assert shown.exit_code == 1
    assert "nowhere.json" in said(shown).replace(" ", "")  # long words are broken
    assert ran == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b'{"datasets": ', b"[]", b"\xff\xfe\x00", b"{}"])
def test_a_damaged_file_of_winners(ran, winners, content, tmp_path):
    winners.write_bytes(content)
    shown = called("imdb", "--winners", winners, "--json", tmp_path / "rows.json")
    assert shown.exit_code == 1
    assert "winners.json" in said(shown).replace(" ", "")
    assert "--tune" in said(shown)
    assert ran == []


def test_winners_without_a_line_of_the_experiment(ran, winners, tmp_path):
    """The error comes before anything is run."""
    winners.write_text(json.dumps(recorded("adam")), encoding="utf-8")
    shown = called("imdb", "--quick", "--winners", winners, "--json", tmp_path / "rows.json")
    assert shown.exit_code == 1
    assert "settings for best for DP-SGD | adam on imdb" in said(shown)
    assert ran == []


@pytest.mark.usefixtures("ran")
def test_the_sets_of_the_lines_are_asked_for_alone(needed, winners, tmp_path):
    for words, names in (
        (["imdb", "--quick", "--winners", winners], {"imdb"}),
        (["moments"], {"imdb"}),
    ):
        needed.clear()
        assert called(*words, "--json", tmp_path / "rows.json").exit_code == 0
        assert set(needed) == names
    needed.clear()
    words = ("stackoverflow", "--dataset", "debian-tags", "--winners", winners)
    assert called(*words, "--json", tmp_path / "rows.json").exit_code == 1  # nothing was tuned
    assert needed == []  # so nothing is fetched


@pytest.mark.parametrize("given", [(), ("--workers", "3")])
def test_workers_are_as_many_as_asked_for(ran, winners, tmp_path, monkeypatch, given):
    asked = []

    def stopped(*_, most, **__):
        asked.append(most)
        raise KeyboardInterrupt

    for room in ("workers", "toy.table"):
        monkeypatch.setattr(f"adadps_experiments.reproduce.{room}.run_all", stopped)
    for words in (
        ["imdb", "--quick", "--winners", winners],
        ["imdb", "--tune"],
        ["toy"],
        ["toy", "--tune"],
    ):
        shown = called(
            *words, *given, "--json", tmp_path / "-".join(map(str, words[:2])) / "x.json"
        )
        assert shown.exit_code == 130, shown.output
    assert asked == [3 if given else None] * 4


def test_reviews_of_a_shop_are_needed_by_those_alone_who_train_on_them():
    asking = {
        name
        for name, known in EXPERIMENTS.items()
        if "amazon" in _needed([*known.lines, *known.quick])
    }
    assert asking == {"ood"}
    for known in EXPERIMENTS.values():
        for line in known.lines:
            assert ("amazon" in _needed([line])) == bool(line.public.proxy)
            assert set(NEEDED[line.dataset]) <= set(_needed([line]))


def test_a_whole_run_and_the_same_again(ran, winners, tmp_path):
    rows = tmp_path / "out" / "imdb.json"
    words = ("imdb", "--quick", "--winners", winners, "--json", rows)
    shown = called(*words)
    assert shown.exit_code == 0, shown.output
    lines = EXPERIMENTS["imdb"].quick
    assert len(ran) == len(lines)
    assert [job.method for job in ran] == [line.method for line in lines]
    assert {job.seed for job in ran} == {0}
    first = rows.read_text(encoding="utf-8")
    found = json.loads(first)
    assert [row["method"] for row in found] == [line.method for line in lines]
    assert [row["paper"] for row in found] == [line.paper for line in lines]
    assert all(
        row["settings"]["published_epsilon_claimed"] == 7.25 for row in found if row["paper"]
    )
    assert rows.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    record_file = (rows.parent / "runs.jsonl").read_bytes()
    assert len(record_file.splitlines()) == len(lines)
    for word in ("DP-SGD", "AdaDPS, before", "Adam, no", "0.63"):
        assert word in shown.output

    ran.clear()
    again = called(*words)
    assert again.exit_code == 0, again.output
    assert ran == []
    assert rows.read_text(encoding="utf-8") == first
    assert (rows.parent / "runs.jsonl").read_bytes() == record_file


def test_an_interrupted_run_goes_on(ran, winners, tmp_path, monkeypatch):
    rows = tmp_path / "imdb.json"
    words = ("imdb", "--quick", "--winners", winners, "--json", rows)
    whole = jobs.run

    def stopped(job):
        if len(ran) == 3:
            raise KeyboardInterrupt
        return whole(job)

    with monkeypatch.context() as until:
        until.setattr("adadps_experiments.reproduce.text.tables.run", stopped)
        shown = called(*words)
    assert shown.exit_code == 130
    assert "finished runs are saved" in said(shown)
    assert not rows.exists()
    begun = list(ran)
    ran.clear()
    assert called(*words).exit_code == 0
    together = [str(job.describe()) for job in (*begun, *ran)]
    assert len(together) == len(set(together)) == len(EXPERIMENTS["imdb"].quick)


def test_damaged_runs_are_not_thrown_away(ran, winners, tmp_path):
    damaged = b'{"job": 7}\n'
    (tmp_path / "runs.jsonl").write_bytes(damaged)
    shown = called("imdb", "--quick", "--winners", winners, "--json", tmp_path / "imdb.json")
    assert shown.exit_code == 1
    assert "line 1 of" in said(shown)
    assert (tmp_path / "runs.jsonl").read_bytes() == damaged
    assert ran == []


@pytest.fixture
def made_up(monkeypatch):
    """Trials without training, of a few lines."""
    few = replace(EXPERIMENTS["imdb"], lines=EXPERIMENTS["imdb"].quick)
    monkeypatch.setitem(EXPERIMENTS, "imdb", few)

    def tried(job):
        if not job.tuning:
            return jobs.run(job)
        return {"job": job.describe(), "values": {"accuracy": 0.5}}

    monkeypatch.setattr(tuning, "run", tried)
    monkeypatch.setattr(recipes, "CANDIDATES", recipes.CANDIDATES[:2])


@pytest.mark.usefixtures("made_up")
def test_tuning_twice_runs_nothing_the_second_time(ran, tmp_path):
    file = tmp_path / "settings.json"
    shown = called("imdb", "--tune", "--json", file)
    assert shown.exit_code == 0, shown.output
    assert "--winners" in shown.output
    record_file = (tmp_path / "trials.jsonl").read_bytes()
    assert len(record_file.splitlines()) == len(ran) > 80
    first = file.read_text(encoding="utf-8")
    ran.clear()
    assert called("imdb", "--tune", "--json", file).exit_code == 0
    assert ran == []
    assert file.read_text(encoding="utf-8") == first
    winners = read_winners(file)
    for line in EXPERIMENTS["imdb"].lines:
        assert tuning.tuned_setting(line, winners).setting in TEXT_METHODS[line.method].grid(
            TINY.lengths
        )


@pytest.mark.usefixtures("made_up", "ran")
def test_rows_do_not_overwrite_winners(tmp_path, monkeypatch):
    """With default names, the command that --tune suggests can be repeated."""
    monkeypatch.chdir(tmp_path)
    shown = called("imdb", "--tune")
    assert shown.exit_code == 0, shown.output
    [file] = [Path(part) for part in re.findall(r"--winners (\S+)", shown.output)]
    for _ in range(2):
        shown = called("imdb", "--quick", "--winners", file)
        assert shown.exit_code == 0, shown.stderr
    assert isinstance(read_winners(file), dict)


@pytest.mark.usefixtures("made_up", "ran")
def test_one_data_set_has_files_of_its_own(tmp_path, monkeypatch):
    """The rows of one data set then do not overwrite those of all."""
    monkeypatch.chdir(tmp_path)
    assert called("imdb", "--tune", "--dataset", "imdb").exit_code == 0
    file = Path("reproduced/imdb-imdb-winners.json")
    assert called("imdb", "--quick", "--dataset", "imdb", "--winners", file).exit_code == 0
    names = sorted(found.name for found in Path("reproduced").iterdir())
    assert names == [
        "imdb-imdb-winners.json",
        "imdb-imdb.json",
        "imdb-imdb.png",
        "runs.jsonl",
        "trials.jsonl",
    ]


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "rows.json"
    write_json(path, [1])

    def full(_file):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as until:
        until.setattr("adadps.files.os.fsync", full)
        with pytest.raises(DataError, match="No space left"):
            write_json(path, [2])
    assert json.loads(path.read_text(encoding="utf-8")) == [1]
    assert list(tmp_path.iterdir()) == [path]
    write_json(path, [3])
    assert json.loads(path.read_text(encoding="utf-8")) == [3]


@pytest.mark.usefixtures("ran")
def test_the_picture_of_moments(tmp_path):
    rows = tmp_path / "moments.json"
    shown = called("moments", "--json", rows, "--plot", tmp_path / "picture.png")
    assert shown.exit_code == 0, shown.output
    assert "not private" in shown.output
    assert len(json.loads(rows.read_text(encoding="utf-8"))) == 3
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
