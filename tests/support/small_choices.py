"""Choices of features on tables that are smaller than a choice would otherwise accept."""

from contextlib import contextmanager

import pytest

from adadps.accounting.noisy_counts import choice


@contextmanager
def small_choices(steps=2):
    """Trials of a few steps, on however few rows: nothing else changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "STEPS", steps)
        patch.setattr(choice, "VISIBLE", 1e9)
        yield
