"""Shared by all tests: the same hypothesis cases in every run, a fixed initialisation."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("adadps", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("adadps")


@pytest.fixture(autouse=True)
def _same_initialisation():
    torch.manual_seed(0)
