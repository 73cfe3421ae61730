"""Train models with differential privacy, and stay adaptive under the noise.

>>> from adadps import dp_sgd, fit, poisson, privatize  # the smallest set of names
"""

from adadps.accounting.epsilon import (
    Budget,
    calibrate_noise,
    calibrate_side_noise,
    calibrate_steps,
    epsilon_of_run,
)
from adadps.accounting.ledger import DiskLedger, Ledger, MemoryLedger
from adadps.accounting.samplers import fixed_size, poisson, shuffled
from adadps.data.assumed import AssumedPublic
from adadps.data.examples import Examples, PublicExamples, examples, public_examples
from adadps.engine import losses
from adadps.engine.noise.randomness import reproducible_not_private, secure
from adadps.errors import (
    AdadpsError,
    BudgetError,
    ContractError,
    DataError,
    ModelError,
    NoTrialError,
    OrderError,
    PrivacyWarning,
    SettingError,
    SideInformationError,
)
from adadps.estimators import (
    AdaDPSClassifier,
    AdaDPSRegressor,
    PublicVectorizer,
    make_text_pipeline,
)
from adadps.methods import side, stages
from adadps.methods.paper import (
    adadps,
    adadps_public,
    adadps_two_sided,
    adas,
    dp_adagrad,
    dp_adam,
    dp_adam_pub,
    dp_r_pub,
    dp_rmsprop,
    dp_sgd,
    dp_sgd_weighted,
    ideal,
    pda_dpmd,
    plain_adam,
    plain_rmsprop,
    plain_sgd,
    warm_start,
)
from adadps.methods.stages import by_user, chain, privatize
from adadps.report.result import Result, load_result
from adadps.tensors.feature_major import sparse_linear
from adadps.training.checkpoint import Checkpoints
from adadps.training.evaluation import Evaluation, accuracy, on_held_out, on_public
from adadps.training.fit import fit
from adadps.training.run import PrivateRun
from adadps.training.tuning import (
    TuningResult,
    calibrate_tuning,
    fixed_grid,
    highest,
    lowest,
    private_accuracy,
    private_selection,
    tune,
)
from adadps.types import Accountant, Relation

__version__ = "0.2.0"

__all__ = [
    "Accountant",
    "AdaDPSClassifier",
    "AdaDPSRegressor",
    "AdadpsError",
    "AssumedPublic",
    "Budget",
    "BudgetError",
    "Checkpoints",
    "ContractError",
    "DataError",
    "DiskLedger",
    "Evaluation",
    "Examples",
    "Ledger",
    "MemoryLedger",
    "ModelError",
    "NoTrialError",
    "OrderError",
    "PrivacyWarning",
    "PrivateRun",
    "PublicExamples",
    "PublicVectorizer",
    "Relation",
    "Result",
    "SettingError",
    "SideInformationError",
    "TuningResult",
    "accuracy",
    "adadps",
    "adadps_public",
    "adadps_two_sided",
    "adas",
    "by_user",
    "calibrate_noise",
    "calibrate_side_noise",
    "calibrate_steps",
    "calibrate_tuning",
    "chain",
    "dp_adagrad",
    "dp_adam",
    "dp_adam_pub",
    "dp_r_pub",
    "dp_rmsprop",
    "dp_sgd",
    "dp_sgd_weighted",
    "epsilon_of_run",
    "examples",
    "fit",
    "fixed_grid",
    "fixed_size",
    "highest",
    "ideal",
    "load_result",
    "losses",
    "lowest",
    "make_text_pipeline",
    "on_held_out",
    "on_public",
    "pda_dpmd",
    "plain_adam",
    "plain_rmsprop",
    "plain_sgd",
    "poisson",
    "private_accuracy",
    "private_selection",
    "privatize",
    "public_examples",
    "reproducible_not_private",
    "secure",
    "shuffled",
    "side",
    "sparse_linear",
    "stages",
    "tune",
    "warm_start",
]
