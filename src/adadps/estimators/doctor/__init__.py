"""The doctor: which side information helps, judged on public data before any budget is spent.

Nothing here reads private data, and no epsilon is spent. A private run is *simulated* on public
examples, with the noise that it will have; its weights are discarded.
"""

from adadps.estimators.doctor.candidates import (
    Candidate,
    before_the_clip,
    both_sides,
    candidates_for_words,
    into_the_features,
    no_side_information,
    public_gradients,
)
from adadps.estimators.doctor.examination import Findings, examine
from adadps.estimators.doctor.terms import BoundTerms
from adadps.estimators.doctor.verdict import Finding, Shown, Verdict

__all__ = [
    "BoundTerms",
    "Candidate",
    "Finding",
    "Findings",
    "Shown",
    "Verdict",
    "before_the_clip",
    "both_sides",
    "candidates_for_words",
    "examine",
    "into_the_features",
    "no_side_information",
    "public_gradients",
]
