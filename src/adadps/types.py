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
    DP_ADAM_BC = "dp-adam-bc"
    DP_SGD_AUTO_CLIP = "dp-sgd-auto-clip"
    DP_SGD_ADAPTIVE_CLIP = "dp-sgd-adaptive-clip"
    DP2 = "dp2"
    SCALE_THEN_PRIVATIZE = "scale-then-privatize"


class TextFeatures(StrEnum):
    """What a text becomes: counts of public words, a public embedding, or both.

    ``auto`` is both, in shares that follow from public numbers; ``choose`` is both, in shares that
    are chosen on the private rows, as a part of epsilon.
    """

    AUTO = "auto"
    WORDS = "words"
    EMBEDDINGS = "embeddings"
    BOTH = "both"
    CHOOSE = "choose"


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
