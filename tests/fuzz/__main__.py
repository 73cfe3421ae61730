"""Run many fuzzed inputs: ``cd tests && python -m fuzz --inputs 100000``.

Every input follows from the seed, the target and its number: ``--only tables --at 1234`` repeats
one. Exit code 1 if any input did not end as it must.
"""

from __future__ import annotations

import argparse
import sys

from fuzz.driver import run_all, run_some
from fuzz.targets import TARGETS


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", choices=[target.name for target in TARGETS])
    parser.add_argument("--at", type=int, help="repeat this one input of --only")
    given = parser.parse_args()
    chosen = [target for target in TARGETS if given.only in (None, target.name)]
    if given.at is not None:
        report = run_some(chosen[0], given.seed, given.at, 1, float("inf"))
        print(report.failures[0][1] if report.failures else "It ended as it must.")
        return int(bool(report.failures))
    return run_all(chosen, given.inputs, given.seconds, given.seed, given.processes)


if __name__ == "__main__":
    sys.exit(main())
