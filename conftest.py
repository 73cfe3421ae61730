"""Shared by all tests: the same hypothesis cases in every run, a fixed initialisation."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, settings

pytest_plugins = ["support.cheaper", "support.team"]

settings.register_profile("adadps", deadline=None, print_blob=True, derandomize=True)
settings.register_profile(
    "no shrinking", settings.get_profile("adadps"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("adadps")


def _keep_temporary_files_in_memory(memory=Path("/dev/shm"), room=2**30):
    """Checkpoints and ledgers wait for the disk with every file; here nothing need outlive it."""
    usable = "TMPDIR" not in os.environ and os.access(memory, os.W_OK)
    if usable and shutil.disk_usage(memory).free > room:
        os.environ["TMPDIR"] = str(memory)
        tempfile.tempdir = None


_keep_temporary_files_in_memory()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported is no garbage: a million objects are looked through no more."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _same_initialisation():
    import torch

    torch.manual_seed(0)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache for data sets, and no folder of the user's own."""
    place = tmp_path / "cache"
    monkeypatch.setenv("ADADPS_CACHE", str(place))
    monkeypatch.delenv("ADADPS_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    return place
