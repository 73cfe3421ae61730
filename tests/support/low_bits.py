"""The attack on low bits: values that no noise can have made of a sum (Mironov 2012)."""

import math

import torch


def excluded(released, total, rounded):
    """Where no noise of its type can have led from ``total`` to the released value."""
    reachable = torch.zeros(len(released), dtype=torch.bool)
    nearest = released - total
    for candidate in (
        nearest,
        torch.nextafter(nearest, torch.full_like(nearest, math.inf)),
        torch.nextafter(nearest, torch.full_like(nearest, -math.inf)),
    ):
        reachable |= rounded(total + candidate) == released
    return ~reachable
