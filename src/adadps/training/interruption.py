"""Ctrl-C between two steps rather than within one, so that the run can be kept first."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

TOLD = b"\nEnding after the steps that are paid for. Ctrl-C again ends at once, and loses them.\n"


@dataclass
class Interruption:
    """Was an end asked for?"""

    asked: bool = False


@contextmanager
def awaiting_the_step(wanted: bool) -> Iterator[Interruption]:
    """Note the first Ctrl-C instead of raising it; a second one is raised at once.

    Only where it is ``wanted``, in the main thread, and if nobody else handles Ctrl-C: elsewhere
    nothing changes.
    """
    interruption = Interruption()
    usual = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not wanted or not is_main or usual is not signal.default_int_handler:
        yield interruption
        return

    def note(number: int, frame: FrameType | None) -> None:
        if interruption.asked:
            signal.default_int_handler(number, frame)
        interruption.asked = True
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), TOLD)  # print is not for handlers of signals

    signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, usual)
