"""Print the coefficients of the polynomials in `adadps.engine.noise.normals` and their errors."""

import mpmath as mp

mp.mp.dps = 40
NEAR_ZERO = mp.mpf(10) ** -30


def logarithm(w):
    """(log((1+s)/(1-s)) - 2s) / s³ with w = s²."""
    if w < NEAR_ZERO:
        return mp.mpf(2) / 3
    s = mp.sqrt(w)
    return (mp.log((1 + s) / (1 - s)) / s - 2) / w


def sine(v):
    """(sin x - x) / x³ with v = x²."""
    if v < NEAR_ZERO:
        return -mp.mpf(1) / 6
    x = mp.sqrt(v)
    return (mp.sin(x) / x - 1) / v


def cosine(v):
    """(cos x - 1 + x²/2) / x⁴ with v = x²."""
    if v < NEAR_ZERO:
        return mp.mpf(1) / 24
    return (mp.cos(mp.sqrt(v)) - 1 + v / 2) / v**2


EIGHTH_TURN = (mp.pi / 4) ** 2
FITS = {
    "log": (logarithm, (3 - 2 * mp.sqrt(2)) ** 2, 7),
    "sin": (sine, EIGHTH_TURN, 6),
    "cos": (cosine, EIGHTH_TURN, 6),
}

for name, (function, end, count) in FITS.items():
    coefficients, error = mp.chebyfit(function, [0, end], count, error=True)
    print(name, *(repr(float(c)) for c in reversed(coefficients)), f"error {float(error):.1e}")
