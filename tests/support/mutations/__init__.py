"""Lines of the code whose loss would cost privacy, and the tests that guard each."""

from support.mutations import accounting, engine, other_rooms, training

MUTATIONS = engine.MUTATIONS | accounting.MUTATIONS | training.MUTATIONS | other_rooms.MUTATIONS


ESSENTIAL = (
    "the clip is removed",
    "the noise is halved",
    "users are clipped row by row",
    "steps are not charged",
    "what earlier lives paid for is forgotten",
    "a parameter is read without its noise",
    "public rows are trained on as private ones",
    "an exposed chain prints an epsilon",
    "a device sends its update without noise",
    "names are counted without noise",
    "every name is told",
    "delta of a threshold is not subtracted",
)
