"""The demo: which section does a Debian package belong to? Several methods, one budget.

The package descriptions take the place of private data. Public facts are declared: the vocabulary
and its frequencies (wordfreq), the sections, and the number of examples. Word counts are normalised
within each text. The model has no bias, which would take half of every clipped gradient. All tuned
methods have the same features, batches, steps and number of trials; the trials were made on a part
of the training data and are recorded in ``recorded.json``. They are compared with `adadps train` on
the same texts, where nothing is tuned.
"""

from adadps.cli.demo.contenders import CONTENDERS, DemoMethod
from adadps.cli.demo.data import DemoData, load_data
from adadps.cli.demo.running import DemoOutcome, run_demo
from adadps.cli.demo.training import DEFAULTS, STEPS, noise_for, train, train_defaults

__all__ = [
    "CONTENDERS",
    "DEFAULTS",
    "STEPS",
    "DemoData",
    "DemoMethod",
    "DemoOutcome",
    "load_data",
    "noise_for",
    "run_demo",
    "train",
    "train_defaults",
]
