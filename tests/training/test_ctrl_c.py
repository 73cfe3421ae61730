"""Ctrl-C while a run is kept: it ends after the steps that are paid for, and they are kept."""

import signal
import threading

import pytest

from adadps import Checkpoints, dp_sgd, examples, fit, fixed_size, shuffled
from adadps.training.evaluation import on_public
from adadps.training.fit import awaiting_the_step
from support.problems import cross_entropy
from support.resuming import DENSE, LABELS, NOISY, SOME, model

STEPS, SEVENTH = 12, 7


@pytest.fixture(autouse=True)
def _as_in_a_terminal():
    """Processes in the background ignore Ctrl-C."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


class Counting:
    """A metric that comes after the one that presses."""

    def __init__(self):
        self.seen = 0

    def __call__(self, _outputs, _targets):
        self.seen += 1
        return 0.0


def pressed_at(step, times=1):
    """A metric that presses Ctrl-C when it is computed for the given time."""
    seen = []

    def metric(_outputs, _targets):
        seen.append(None)
        if len(seen) == step:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return 0.0

    return on_public("others", DENSE, LABELS, every=1, pressed=metric, also=Counting())


def trained(folder=None, evaluation=None, steps=STEPS, sampler=SOME):
    kept = None if folder is None else Checkpoints(folder, every=5)
    return fit(
        model(),
        cross_entropy,
        examples(DENSE, LABELS),
        method=dp_sgd(NOISY, lr=0.1),
        sampler=sampler,
        steps=steps,
        checkpoints=kept,
        evaluate=[evaluation] if evaluation else [],
        progress=False,
    )


def test_the_step_under_way_is_kept_and_not_paid_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, pressed_at(SEVENTH))
    held = Checkpoints(tmp_path).latest()
    assert (held.taken, held.paid) == (SEVENTH, SEVENTH), "5 would be the last that was due"
    privacy = trained(tmp_path).privacy
    assert privacy.steps == privacy.steps_paid == STEPS


@pytest.mark.parametrize(
    "sampler",
    [shuffled(examples=30, expected_size=10), fixed_size(examples=30, expected_size=6)],
    ids=["shuffled", "fixed"],
)
def test_however_batches_are_drawn(tmp_path, sampler):
    """Steps of an epoch that is paid for have entries of their own."""
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, pressed_at(SEVENTH), sampler=sampler)
    assert Checkpoints(tmp_path).latest().taken == SEVENTH


def test_in_the_very_last_step_nothing_is_lost_either(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, pressed_at(STEPS))
    privacy = trained(tmp_path).privacy
    assert privacy.steps == privacy.steps_paid == STEPS


def test_what_is_reserved_ahead_is_used_before_it_ends(tmp_path):
    """A ledger on the disk reserves a hundredth of the steps at once."""
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, pressed_at(SEVENTH), steps=400)
    held = Checkpoints(tmp_path).latest()
    assert held.taken == held.paid == 8
    privacy = trained(tmp_path, steps=400).privacy
    assert privacy.steps == privacy.steps_paid == 400


def test_pressed_twice_it_ends_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, pressed_at(SEVENTH, times=2))
    assert Checkpoints(tmp_path).latest().taken == 5


def test_a_run_that_is_not_kept_ends_at_once():
    pressed = pressed_at(SEVENTH)
    with pytest.raises(KeyboardInterrupt):
        trained(None, pressed)
    assert pressed.metrics["also"].seen == SEVENTH - 1, "not even the next metric is computed"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_is_as_before_when_the_run_is_over(tmp_path):
    trained(tmp_path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_handler_is_left_alone():
    calls = []
    usual = signal.signal(signal.SIGINT, lambda *_: calls.append("theirs"))
    try:
        with awaiting_the_step(True) as interruption:
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert calls == ["theirs"]
    assert not interruption.asked


def test_another_thread_cannot_hear_it(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(trained(tmp_path)))
    thread.start()
    thread.join()
    assert results[0].privacy.steps == STEPS
