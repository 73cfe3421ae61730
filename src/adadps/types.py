"""The enums that all rooms share: signals, neighbours, units, accountants, and methods by name."""

from __future__ import annotations

from enum import Enum, StrEnum


class Kind(Enum):
    """What flows between two stages."""

    EXAMPLES = "examples"
    PER_UNIT = "per-unit gradients"
    RELEASED = "released (privatized) gradients"
    EXPOSED = "exposed (not private) gradients"
    UPDATE = "an update of the weights"


class Relation(Enum):
    """Which two data sets are neighbours, i.e. what epsilon compares."""

    ADD_OR_REMOVE_ONE = "add or remove one"
    ZERO_OUT = "zero out one"
    REPLACE_ONE = "replace one"


class Unit(Enum):
    """The unit that epsilon protects: what a sampler draws, and what is clipped as one."""

    EXAMPLE = "example"
    USER = "user"


class Accountant(Enum):
    """How events are composed into epsilon."""

    PLD = "pld"
    RDP = "rdp"


class Method(StrEnum):
    """Methods that can be trained by name."""

    AUTO = "auto"
    ADADPS = "adadps"
    ADADPS_TWO_SIDED = "adadps-two-sided"
    DP_SGD_WEIGHTED = "dp-sgd-weighted"
    DP_SGD = "dp-sgd"
    DP_ADAM = "dp-adam"

    @property
    def takes_side_information(self) -> bool:
        """Return whether the method reads side information."""
        return self in (Method.ADADPS, Method.ADADPS_TWO_SIDED, Method.DP_SGD_WEIGHTED)

    def resolved(self, *, informed: bool, linear: bool = True, on_devices: bool = False) -> Method:
        """Return the method itself, or the one that ``auto`` stands for.

        Without side information (``informed``) that is DP-SGD. With it, a linear model gets
        weighted features, and any other model AdaDPS, which works on every layer. Devices of a
        federation are sent weights and D but no features, so they get two-sided AdaDPS.

        >>> Method.AUTO.resolved(informed=True).value
        'dp-sgd-weighted'
        >>> Method.AUTO.resolved(informed=True, on_devices=True).value
        'adadps-two-sided'
        """
        if self is not Method.AUTO:
            return self
        if not informed:
            return Method.DP_SGD
        if on_devices:
            return Method.ADADPS_TWO_SIDED
        return Method.DP_SGD_WEIGHTED if linear else Method.ADADPS


class NoiseBy(StrEnum):
    """Who adds the noise."""

    SERVER = "server"
    SHARES = "shares"
    DEVICE = "device"


class DrawnBy(StrEnum):
    """How the users of a round are drawn."""

    POISSON = "poisson"
    FIXED = "fixed"
    SHUFFLED = "shuffled"
