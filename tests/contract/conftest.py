"""Shared by the contract tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    """Problems this small wait for threads longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
