"""`adadps bench --processes 1,2`: rows and a table of processes that train together."""

import pytest
from typer.testing import CliRunner

from adadps.cli.main import app
from adadps.errors import SettingError
from adadps_experiments.bench import sheets, together
from adadps_experiments.bench.rows import RowFile, find, load
from adadps_experiments.bench.workloads import WORKLOADS
from support.bench_rows import row_of

runner = CliRunner()


def test_two_processes_send_the_sum_of_every_step():
    workload = WORKLOADS["autoencoder-256"].tiny()
    row = together.measure_processes(workload, "adadps", 2, steps=3, threads=1)
    assert "error" not in row, row
    assert (row["processes"], row["steps"], row["threads"]) == (2, 3, 1)
    weights = sum(p.numel() for p in workload.model().parameters())
    assert row["bytes_per_step"] == 8 * weights
    assert row["steps_per_second"] > 0 < row["ms_per_step"]


def test_rows_are_kept_apart_by_their_number_of_processes(tmp_path, monkeypatch):
    found = {1: 4.0, 2: 2.5}
    asked = []

    def measured(workload, name, count, *, steps, threads):
        asked.append((workload.name, count, steps, threads))
        numbers = {"steps_per_second": 100.0, "bytes_per_step": 1000.0 * (count - 1)}
        return {**row_of(workload.name, name, found[count], processes=count), **numbers}

    monkeypatch.setattr(together, "measure_processes", measured)
    path = tmp_path / "rows.json"
    options = ["bench", "--processes", "1,2", "--workload", "logreg-10k", "--json", str(path)]
    shown = runner.invoke(app, [*options, "--markdown"])
    assert shown.exit_code == 0, shown.output
    assert asked == [("logreg-10k", 1, None, 1), ("logreg-10k", 2, None, 1)]
    assert "| logreg-10k | adadps | 2 | 100 | 2.5 | 1.6 | 1,000 | 10 |" in shown.stdout
    file = RowFile(path, resume=True)
    assert file.has("logreg-10k", "adadps", 1, 2)
    assert not file.has("logreg-10k", "adadps", 1)
    file.put(row_of("logreg-10k", "adadps", 9.0))
    rows = load(path)
    assert len(rows) == 3
    assert find(rows, "logreg-10k", "adadps")["ms_per_step"] == 9.0
    assert find(rows, "logreg-10k", "adadps", 2)["ms_per_step"] == 2.5
    titles = [sheet.title[:7] for sheet in sheets.sheets_of(rows)]
    assert titles == ["logreg-", "Targets", "Several"]


def test_a_failure_is_a_row(monkeypatch):
    monkeypatch.setattr(together, "PATIENCE", 0.0)
    workload = WORKLOADS["logreg-10k"].tiny()
    row = together.measure_processes(workload, "adadps", 1, steps=1, threads=1)
    assert (row["processes"], row["ms_per_step"]) == (1, None)
    assert "cannot run: not done" in sheets.as_markdown(sheets.sheets_of([row]))


@pytest.mark.parametrize("given", ["", "0", "1,", "two", "1,65", "-1"])
def test_other_numbers_are_refused(given):
    with pytest.raises(SettingError, match="--processes as numbers"):
        together.counts_of(given, None, epoch=False)


def test_options_that_do_not_go_together_are_refused():
    with pytest.raises(SettingError, match="found both"):
        together.counts_of("2", None, epoch=True)
    with pytest.raises(SettingError, match="--threads of each process"):
        together.counts_of("2", 10**6, epoch=False)
    assert runner.invoke(app, ["bench", "--check", "--processes", "2"]).exit_code == 2
