"""What a guarantee means for the one whom it protects, in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from adadps.types import Relation, Unit

LITTLE = 1000.0
"""A factor above this is hardly a promise."""
_OTHERWISE = {
    Relation.ADD_OR_REMOVE_ONE.value: "had {it} not been in the data",
    Relation.ZERO_OUT.value: "had {it} been emptied",
    Relation.REPLACE_ONE.value: "had {it} been replaced by anything else",
}


def meaning_of(privacy: Mapping[str, Any], seen: str = "this model") -> str:
    """(ε, δ) in a sentence or two: P(conclusion) ≤ e^ε P'(conclusion) + δ, and the other way round.

    ``seen`` is what the conclusion is drawn from.

    >>> meaning_of({"epsilon": 1, "delta": 1e-5, "unit": "user", "relation": "add or remove one"})
    'For any user: whatever somebody concludes from this model, the chance that they do is ...'
    """
    if privacy["epsilon"] is None:
        return "Nothing is promised to anybody: what was in the data may be read off this model."
    unit = privacy["unit"]
    it = f"this {unit}"
    if unit.split(" ")[0] == Unit.USER.value:  # perhaps with the column that tells them apart
        unit, it = Unit.USER.value, "all data of this user"
    otherwise = _OTHERWISE.get(privacy["relation"], "had the data differed in {it}").format(it=it)
    factor = factor_of(privacy["epsilon"])
    said = (
        f"For any {unit}: whatever somebody concludes from {seen}, the chance that they do is at "
        f"most {factor} times (e^ε) what it would be {otherwise}, plus δ = "
        f"{privacy['delta']:.3g}; and the other way round. Whoever bets on which of the two it "
        f"was, as if a coin had been tossed, wins at most {winning(privacy)} % of the time."
    )
    little = privacy["epsilon"] > math.log(LITTLE)
    return f"{said} A factor this large promises little." if little else said


def winning(privacy: Mapping[str, Any]) -> float:
    """(e^ε + δ)/(1 + e^ε) in percent, rounded up: a coin alone wins 50.

    >>> winning({"epsilon": 1.0, "delta": 1e-5}), winning({"epsilon": 900.0, "delta": 1e-5})
    (73.2, 100.0)
    >>> winning({"epsilon": 8.0, "delta": 1e-5})
    99.97
    """
    unlikely = math.exp(-float(privacy["epsilon"]))
    wins = (1 + float(privacy["delta"]) * unlikely) / (1 + unlikely)
    rounded = (math.ceil(100 * wins * 10**digits) / 10**digits for digits in (1, 2, 3, 4))
    return next((percent for percent in rounded if percent < 100), 100.0)


def factor_of(epsilon: float) -> str:
    """e^ε with three digits, rounded up: a bound must not be understated.

    >>> factor_of(1.0), factor_of(0.001), factor_of(20.0), factor_of(9999.0)
    ('2.72', '1.01', '4.86e+08', '10^4343')
    """
    if epsilon > 600:
        return f"10^{math.ceil(epsilon / math.log(10))}"
    factor = math.exp(epsilon)
    place = 10.0 ** (math.floor(math.log10(factor)) - 2)
    return f"{math.ceil(factor / place) * place:.3g}"
