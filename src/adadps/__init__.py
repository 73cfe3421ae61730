"""Train models with differential privacy, and stay adaptive under the noise.

>>> from adadps import dp_sgd, fit, poisson, privatize  # the smallest set of names

Names are imported when they are first used, so that what does without torch stays quick to start.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adadps import methods
    from adadps.accounting.epsilon import Budget, calibrate_noise, calibrate_steps, epsilon_of_run
    from adadps.accounting.ledger import DiskLedger
    from adadps.accounting.samplers import fixed_size, poisson, shuffled
    from adadps.data.examples import examples, public_examples
    from adadps.data.sparse_rows import sparse_linear
    from adadps.engine import losses
    from adadps.engine.noise.randomness import reproducible_not_private
    from adadps.errors import AdadpsError, BudgetError, PrivacyWarning
    from adadps.estimators import (
        AdaDPSClassifier,
        AdaDPSRegressor,
        PublicVectorizer,
        make_text_pipeline,
    )
    from adadps.methods import side, stages
    from adadps.methods.paper import adadps, dp_adam, dp_sgd
    from adadps.methods.stages import by_user, privatize
    from adadps.methods.stages.chain import chain
    from adadps.report.result import Result
    from adadps.report.saved_result import load_result
    from adadps.training.checkpoint import Checkpoints
    from adadps.training.evaluation import accuracy, on_held_out, on_public
    from adadps.training.fit import PrivateRun, fit
    from adadps.training.tuning import tune
    from adadps.types import Accountant, Relation

__version__ = "0.2.0"

_HOMES = {
    "accounting.epsilon": "Budget calibrate_noise calibrate_steps epsilon_of_run",
    "accounting.ledger": "DiskLedger",
    "accounting.samplers": "fixed_size poisson shuffled",
    "data.examples": "examples public_examples",
    "data.sparse_rows": "sparse_linear",
    "engine": "losses",
    "engine.noise.randomness": "reproducible_not_private",
    "errors": "AdadpsError BudgetError PrivacyWarning",
    "estimators": "AdaDPSClassifier AdaDPSRegressor PublicVectorizer make_text_pipeline",
    "methods": "side stages",
    "methods.paper": "adadps dp_adam dp_sgd",
    "methods.stages": "by_user chain privatize",
    "report.result": "Result",
    "report.saved_result": "load_result",
    "training.checkpoint": "Checkpoints",
    "training.evaluation": "accuracy on_held_out on_public",
    "training.fit": "PrivateRun fit",
    "training.tuning": "tune",
    "types": "Accountant Relation",
}
_ROOMS = ("accounting", "audit", "data", "engine", "errors", "estimators", "methods", "training")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Accountant",
    "AdaDPSClassifier",
    "AdaDPSRegressor",
    "AdadpsError",
    "Budget",
    "BudgetError",
    "Checkpoints",
    "DiskLedger",
    "PrivacyWarning",
    "PrivateRun",
    "PublicVectorizer",
    "Relation",
    "Result",
    "accuracy",
    "adadps",
    "by_user",
    "calibrate_noise",
    "calibrate_steps",
    "chain",
    "dp_adam",
    "dp_sgd",
    "epsilon_of_run",
    "examples",
    "fit",
    "fixed_size",
    "load_result",
    "losses",
    "make_text_pipeline",
    "methods",
    "on_held_out",
    "on_public",
    "poisson",
    "privatize",
    "public_examples",
    "reproducible_not_private",
    "shuffled",
    "side",
    "sparse_linear",
    "stages",
    "tune",
]


def __getattr__(name: str) -> Any:
    """The object of a public name, imported now."""
    if name in _ROOMS:
        return import_module(f"adadps.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'adadps' has no attribute {name!r}")
    home = f"adadps.{_HOME_OF[name]}"
    module = import_module(home)
    found = getattr(module, name, None) or import_module(f"{home}.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
