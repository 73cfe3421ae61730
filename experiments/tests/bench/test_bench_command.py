"""`adadps bench`: failures are rows, rows are saved and shown, bad input is refused."""

import json
import os
import re
import signal
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from adadps.cli.main import app
from adadps.errors import DataError
from adadps_experiments.bench import measure, session, sheets
from adadps_experiments.bench.contenders import CONTENDERS
from adadps_experiments.bench.measure import Timing
from adadps_experiments.bench.rows import RowFile, find, load
from adadps_experiments.bench.targets import TARGETS, MemoryTarget, RatioTarget, verdicts
from adadps_experiments.bench.workloads import WORKLOADS
from support.bench_rows import row_of

runner = CliRunner()
QUICK = Timing(threads=1, steps=2)
SCHEMA = {"workload", "contender", "ms_per_step", "peak_mb"}


def plain_text(text):
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


def _die(workload, name, timing):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_a_row():
    workload = WORKLOADS["logreg-10k"].tiny()
    row = measure.in_fresh_process(_die, workload, "torch", QUICK, patience=60)
    assert row["error"] == "cannot run: ended by signal 9 (out of memory?)"


def test_an_error_is_a_row_of_few_words(monkeypatch):
    def explode(*job):
        raise RuntimeError("no such\nkernel " + "x" * 500)

    monkeypatch.setattr(measure, "prepare_process", lambda _: None)
    sent = []
    pipe = SimpleNamespace(send=sent.append)
    measure._answer(pipe, explode, WORKLOADS["lstm"], "torch", QUICK)
    assert sent[0].startswith("cannot run: RuntimeError: no such kernel xxx")
    assert len(sent[0]) < 160
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")
    assert measure.failure_reason(error) == "cannot run: out of memory"


def test_a_missing_package_is_a_hint(tiny, monkeypatch):
    monkeypatch.setattr(measure, "find_spec", lambda _: None)
    options = ["--contender", "opacus-ghost"]
    shown = runner.invoke(app, ["bench", *options], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "pip install 'adadps-experiments[bench]'" in plain_text(shown.stderr)
    assert "cannot run: opacus is not" in plain_text(shown.stdout)
    assert "[bench]" in shown.stdout


# Rows, tables, targets


def test_verdicts_of_targets():
    rows = [
        row_of("logreg-10k", "adadps", ms=2.0, mb=100.0),
        row_of("logreg-10k", "opacus-hooks", ms=1000.0, mb=499.0),
        row_of("logreg-10k", "opacus-ghost", ms=None, mb=None, error="cannot run: no"),
        row_of("autoencoder-64", "adadps", ms=3.0),
        row_of("autoencoder-64", "torch", ms=1.0),
        row_of("autoencoder-256", "adadps-whitened", ms=5.0),
        row_of("autoencoder-256", "adadps-dp-sgd", ms=4.0),
        row_of("logreg-10k-50", "adadps", ms=1.0, touched_rows=1000.0),
        row_of("logreg-1m-50", "adadps", ms=1.1, touched_rows=1100.0),
        row_of("lstm", "adadps", ms=1.0, mb=1025.0),
        row_of("lstm", "opacus-hooks", ms=5.0),
        row_of("lstm", "opacus-ghost", ms=3.0),
    ]
    found = {
        (verdict.target.workload, verdict.target.compared): (verdict.ratio, verdict.outcome)
        for verdict in verdicts(rows)
    }
    assert found["logreg-10k", "time: opacus-hooks ÷ adadps"] == (500, "met")
    assert found["logreg-10k", "memory: opacus-hooks ÷ adadps"] == (4.99, "missed")
    assert found["logreg-10k", "time: opacus-ghost ÷ adadps"] == (None, "opacus-ghost cannot run")
    assert found["logreg-10k", "time: adadps ÷ torch-sparse"] == (None, "not measured")
    assert found["autoencoder-64", "time: adadps ÷ torch"] == (3, "missed")
    ratio, outcome = found["logreg-1m-50", "time per touched row: adadps ÷ adadps on logreg-10k-50"]
    assert (ratio, outcome) == (pytest.approx(1), "met")
    assert found["lstm", "time: opacus-hooks ÷ adadps"] == (5, "met")
    assert found["lstm", "time: opacus-ghost ÷ adadps"] == (3, "missed")
    assert found["lstm", "MB: adadps"] == (1025, "missed")
    assert found["autoencoder-256", "time: adadps-whitened ÷ adadps-dp-sgd"] == (1.25, "met")
    assert not any(workload == "embedding-bag" for workload, _ in found)
    assert {target.workload for target in TARGETS} <= set(WORKLOADS)
    ratios = [target for target in TARGETS if isinstance(target, RatioTarget)]
    assert {name for target in ratios for name in (target.against, target.ours)} <= set(CONTENDERS)


def test_a_bound_on_memory_has_no_rival():
    held = {
        verdict.outcome
        for megabytes in (1024.0, None)
        for verdict in verdicts([row_of("lstm", "adadps", ms=megabytes, mb=megabytes)])
        if isinstance(verdict.target, MemoryTarget)
    }
    assert held == {"met", "adadps cannot run"}


def test_tables_show_ratios_and_reasons():
    rows = [
        row_of("lstm", "torch", ms=4.0, threads=2, touched_rows=1000.0),
        row_of(
            "lstm",
            "adadps",
            ms=2.0,
            flush_ms=7.0,
            threads=2,
            touched_rows=1000.0,
            engine="general",
        ),
        row_of("lstm", "opacus-hooks", ms=None, mb=None, threads=2, error="cannot run: needs 9 GB"),
        row_of("logreg-10k-epoch", "adadps", ms=5.0, seconds=20.0, steps=3845),
        row_of("lstm", "microbatch-loop", threads=2, other_work=0.5),
    ]
    text = sheets.as_markdown(sheets.sheets_of(rows))
    assert "### lstm (1,000 rows touched per batch, engine: general, threads: 2)" in text
    assert "| adadps | 2 | 10 | 1 | 0.5 | 2 | 7 |" in text
    assert "| torch | 4 | 10 | 2 | 1 | 4 | – |" in text
    assert "| opacus-hooks | cannot run: needs 9 GB | – | – | – | – | – |" in text
    assert "| logreg-10k-epoch | adadps | 20 | 10 | measured: 3,845 steps |" in text
    assert "| lstm | microbatch-loop | 50% |" in text
    assert text.index("| adadps |") < text.index("| torch |"), "ours comes first"


def test_nothing_measured_is_nothing_to_draw():
    with pytest.raises(DataError, match="at least one measured row"):
        sheets.draw_chart([row_of("lstm", "torch", ms=None, mb=None, error="cannot run: no")])


def test_rows_are_on_disk_as_they_come_in(tiny, monkeypatch, tmp_path):
    """A run that is killed at its second row has saved the first, and resumes there."""
    file = tmp_path / "rows.json"

    def interrupted(workload, name, timing):
        if name == "torch-sparse":
            raise KeyboardInterrupt
        return row_of(workload.name, name)

    monkeypatch.setattr(session, "measure_contender", interrupted)
    jobs = [(tiny, "torch"), (tiny, "torch-sparse"), (tiny, "microbatch-loop")]
    with pytest.raises(KeyboardInterrupt):
        session.measure_all(jobs, QUICK, RowFile(file, resume=False), print)
    assert [row["contender"] for row in load(file)] == ["torch"]

    tried = []

    def again(workload, name, timing):
        tried.append(name)
        return row_of(workload.name, name, ms=2.0)

    monkeypatch.setattr(session, "measure_contender", again)
    rows = session.measure_all(jobs, QUICK, RowFile(file, resume=True), print)
    assert tried == ["torch-sparse", "microbatch-loop"]
    assert rows == load(file)
    assert find(rows, "tiny", "torch")["ms_per_step"] == 1.0


def test_failed_and_disturbed_rows_are_measured_again(tiny, at_once, tmp_path):
    file = RowFile(tmp_path / "rows.json", resume=False)
    file.put(row_of("tiny", "torch", ms=None, mb=None, error="cannot run: no"))
    file.put(row_of("tiny", "microbatch-loop", other_work=0.9))
    file.put(row_of("tiny", "adadps", other_work=0.01))
    file.put(row_of("tiny", "torch-sparse", threads=2))
    names = ("torch", "microbatch-loop", "adadps", "torch-sparse")
    session.measure_all([(tiny, name) for name in names], QUICK, file, print)
    assert at_once == ["torch", "microbatch-loop", "torch-sparse"]
    assert [row["contender"] for row in file.rows] == list(names), "each in its place"


@pytest.mark.parametrize("content", ["", "{}", '[{"workload": "x"}]'])
def test_other_files_are_refused(content, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(content, encoding="utf-8")
    shown = runner.invoke(app, ["bench", "--from", str(file)])
    assert shown.exit_code == 1
    assert "Expected rows of `adadps bench --json`" in plain_text(shown.stderr)


# The command


def test_the_command_measures_in_a_fresh_process(tiny, tmp_path):
    file, picture = tmp_path / "out" / "rows.json", tmp_path / "out" / "rows.png"
    options = ["--contender", "torch", "--steps", "2", "--threads", "1"]
    shown = runner.invoke(app, ["bench", *options, "--json", str(file), "--plot", str(picture)])
    assert shown.exit_code == 0, shown.output
    (row,) = json.loads(file.read_text(encoding="utf-8"))
    assert row.keys() >= SCHEMA
    assert (row["workload"], row["contender"]) == ("tiny", "torch")
    assert row["steps"] == 2
    assert row["threads"] == 1
    assert row["ms_per_step"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    again = runner.invoke(app, ["bench", "--from", str(file), "--markdown"])
    assert "| torch |" in again.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workload", "nothing"], "Expected a workload among logreg-10k,"),
        (["--contender", "nobody"], "Expected a contender among adadps,"),
        (["--workload", "lstm", "--contender", "torch-sparse"], "has no sparse layer"),
        (["--steps", "0"], "Expected --steps between 1 and"),
        (["--threads", "-1"], "Expected --threads between 1 and"),
        (["--resume"], "Add --json FILE"),
        (["--epoch", "--workload", "cnn"], "Expected a workload among logreg-10k, lstm-imdb"),
    ],
)
def test_bad_input_is_told(options, message):
    shown = runner.invoke(app, ["bench", *options])
    assert shown.exit_code == 2
    assert message in plain_text(shown.stderr)


def test_a_missing_file_is_told():
    shown = runner.invoke(app, ["bench", "--from", "/nowhere/rows.json"])
    assert shown.exit_code == 1
    assert "Give such a file" in plain_text(shown.stderr)


def test_the_help_names_everything():
    text = plain_text(runner.invoke(app, ["bench", "--help"]).output)
    assert f"Workloads: {', '.join(WORKLOADS)}." in text
    assert f"Contenders: {', '.join(CONTENDERS)}." in text


def test_all_contenders_take_part_by_default(tiny, at_once):
    shown = runner.invoke(app, ["bench"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert at_once == [name for name in CONTENDERS if name != "adadps-whitened"], "no images here"
