"""Work for processes: importing this takes no time."""

import os
import signal
import time
from pathlib import Path


def work(seed):
    """Return a record; the process that should make the second one is killed."""
    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"job": {"seed": seed}, "value": seed / 2}


def refused(seed):
    raise ValueError(f"seed {seed}")


def wait(folder, number):
    """Write down the number of this process, and work for longer than any test."""
    file = Path(folder) / str(number)
    file.with_suffix(".draft").write_text(str(os.getpid()), encoding="utf-8")
    file.with_suffix(".draft").rename(file)
    time.sleep(300)
