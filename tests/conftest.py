"""Shared by all tests: hypothesis without deadlines, a fixed start for initialisation."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("adadps", deadline=None, print_blob=True)
settings.load_profile("adadps")


@pytest.fixture(autouse=True)
def _same_initialisation():
    torch.manual_seed(0)
