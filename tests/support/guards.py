"""Runs tests on a changed copy of the sources, in a process that has imported all but those.

What takes seconds is importing torch and the like: that is done once, by a server from which the
processes are forked. Bytecode and machine code of what is not changed are copied with the sources.
"""

import multiprocessing
import os
import shutil
import sys
import traceback
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRELOADED = [
    *("torch", "numba", "scipy.sparse", "scipy.stats", "sklearn.feature_extraction.text"),
    *("sklearn.linear_model", "dp_accounting", "randomgen", "wordfreq", "safetensors.torch"),
    *("typer.testing", "rich.table", "pytest", "doctest"),
]
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(PRELOADED)


def changed_copy(folder, file, before, after):
    """The sources in ``folder``, with one line of one ``file`` changed; returns their root."""
    source = (ROOT / file).read_text(encoding="utf-8")
    kinds = ["*.pyc.*"]
    if "compiled" in source:  # machine code of other files may have this one built in
        kinds += ["*.nbi", "*.nbc"]
    shutil.copytree(
        ROOT / "src",
        folder / "src",
        ignore=shutil.ignore_patterns(*kinds),
        copy_function=_copied,
    )
    changed = folder / file
    changed.write_text(source.replace(before, after), encoding="utf-8")
    for stale in (changed.parent / "__pycache__").glob(f"{changed.stem}.*"):
        stale.unlink()
    return folder / "src"


def _copied(source, target):
    with suppress(FileNotFoundError):  # another process is just writing into __pycache__
        shutil.copy2(source, target)


def outcome_of(path, selection, sources, log):
    """The exit code of pytest for these tests on these sources; what it says goes to ``log``."""
    asked = [str(ROOT / path), *([f"-k={selection}"] if selection else [])]
    process = _SERVER.Process(target=_test, args=(asked, str(sources), str(log)))
    process.start()
    process.join()
    return process.exitcode


BROKEN = 99
"""An exit code that pytest does not have: its tests were not run."""


def _test(asked, sources, log):
    output = os.open(log, os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = BROKEN
    try:
        code = _run(asked, sources)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(asked, sources):
    import pytest

    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": sources, "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path.insert(0, sources)
    quick = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=no shrinking"]
    code = pytest.main([*quick, *asked])
    import adadps

    return code if adadps.__file__.startswith(sources) else BROKEN
