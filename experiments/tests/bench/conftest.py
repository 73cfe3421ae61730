"""Shared by the tests of the benchmark: one thread, tiny workloads, instant measurements."""

from dataclasses import replace

import pytest
import torch

from adadps_experiments.bench import session
from adadps_experiments.bench.contenders import ours
from adadps_experiments.bench.workloads import WORKLOADS
from support.bench_rows import row_of


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def short_runs(monkeypatch):
    monkeypatch.setattr(ours, "MOST_STEPS", 20)


@pytest.fixture
def tiny(monkeypatch):
    """Measure one tiny workload instead of all."""
    workload = replace(WORKLOADS["logreg-10k"].tiny(), name="tiny")
    monkeypatch.setattr(session, "WORKLOADS", {"tiny": workload})
    return workload


@pytest.fixture
def at_once(monkeypatch):
    """Replace measurements by instant ones, and list those that were made."""
    made = []

    def measure_contender(workload, name, timing):
        made.append(name)
        return row_of(workload.name, name)

    monkeypatch.setattr(session, "measure_contender", measure_contender)
    return made
