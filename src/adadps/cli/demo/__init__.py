"""The demo: which section does a Debian package belong to? Several methods, one budget.

The package descriptions play the private data. What is public is declared: the vocabulary and its
frequencies (wordfreq), the sections, the number of examples. Each text's word counts are normalised
alone. The model has no bias, which would take half of every clipped gradient. Every contender has
the same features, batches, steps and number of tuning trials; the trials were made on a part of the
training data and are recorded in ``recorded.json``. Beside them stands what `adadps
train` makes of the same texts when nothing is tuned.
"""

from adadps.cli.demo.contenders import CONTENDERS, DemoMethod
from adadps.cli.demo.data import DemoData, load_data
from adadps.cli.demo.running import Outcome, run_demo
from adadps.cli.demo.training import DEFAULTS, STEPS, noise_for, train, train_defaults

__all__ = [
    "CONTENDERS",
    "DEFAULTS",
    "STEPS",
    "DemoData",
    "DemoMethod",
    "Outcome",
    "load_data",
    "noise_for",
    "run_demo",
    "train",
    "train_defaults",
]
