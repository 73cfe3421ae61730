"""The exceptions of adadps.

::

    AdadpsError (also a ValueError)
    ├── OrderError             stages in an order that cannot be trained, or cannot be private
    ├── ContractError          a sampler, relation, grouping and accountant that do not fit together
    ├── SettingError           a number outside its range: epsilon <= 0, delta >= 1, clip_norm <= 0
    ├── SideInformationError   statistics that are not positive, not finite, or do not fit the model
    ├── ModelError             a model or loss that mixes examples, or records something about them
    ├── DataError              examples, files or saved results that cannot be used
    ├── DeviceError            devices of a federation that refuse its task, or do not answer
    ├── BudgetError            a step that would spend more than the privacy budget
    └── NoTrialError           private selection that happened to draw no trial at all

Every message says what was expected, what was found, and how to fix it. `PrivacyWarning` is for
settings that are allowed, but under which a guarantee says less than most people would expect.
"""

import math


class AdadpsError(ValueError):
    """Base of every error that adadps raises about its arguments, files and models."""


class PrivacyWarning(UserWarning):
    """A guarantee says less than most people would expect of it."""


class SpeedWarning(UserWarning):
    """A model trains more slowly, or in more memory, than it could."""


class SideInformationWarning(UserWarning):
    """Public knowledge was given that a run cannot use."""


class OrderError(AdadpsError):
    """Stages stand in an order that cannot be trained, or cannot be private."""


class ContractError(AdadpsError):
    """Sampler, relation, grouping and accountant do not fit together."""


class SettingError(AdadpsError):
    """A number lies outside its range."""


class SideInformationError(AdadpsError):
    """Side information is not positive, not finite, or does not fit the model."""


class ModelError(AdadpsError):
    """A model or loss cannot be trained privately.

    The gradient of one example cannot be separated from those of its neighbours, the output for a
    row depends on other rows, or the model writes into itself or draws from its own generator.
    """


class DataError(AdadpsError):
    """Examples, files or saved results cannot be used as they are."""


class DeviceError(AdadpsError):
    """Devices of a federation cannot perform its task, or none of them answers."""


class BudgetError(AdadpsError):
    """The next step would spend more than the privacy budget."""


class NoTrialError(AdadpsError):
    """Private selection with a Poisson number of trials has drawn none."""


class AssumedPublicWarning(PrivacyWarning):
    """Something was read from private data without noise, and epsilon does not cover it."""


def require(condition: bool, expected: str, found: object, cure: str) -> None:
    """Raise a `SettingError` (expected, found, cure) unless ``condition`` holds."""
    if not condition:
        raise SettingError(f"Expected {expected}, found {found}. {cure}")


def require_positive(name: str, value: float, *, infinite: bool = False) -> float:
    """Check that ``value`` is a positive number (and finite, unless ``infinite``)."""
    fits = value > 0 and (infinite or math.isfinite(value))
    require(fits, f"{name} > 0", value, f"Give a positive, finite {name}.")
    return float(value)
