"""The methods of the paper, one expression each.

``privacy`` is a `privatize` stage. Leave it out, and `fit` fills it in: the clip norm that it is
given, and the noise that the budget asks for. ``side`` is any side information, ``data`` public
examples. What stands before ``privacy`` acts on each example's own gradient; what stands after it
sees only what was released.
"""

from dataclasses import replace

from adadps.data.examples import Examples, PublicExamples
from adadps.methods.side import RMSPropStatistics, SideSource, Statistics, oracle, public, whiten
from adadps.methods.stages import Chain, adagrad, adam, average, chain, cosine, mix, momentum
from adadps.methods.stages import precondition, pretrain, reparametrise, rmsprop, sgd
from adadps.methods.stages.gradients import Privatize, privatize
from adadps.engine.waist import Schedule

OPEN = privatize()
"""A clip and a noise that are still to be chosen."""


# fmt: off
# ruff: noqa: I001
def dp_sgd(privacy: Privatize = OPEN, *, lr: Schedule) -> Chain:
    """Clip and noise, then step."""
    return chain(privacy, sgd(lr))

def dp_adam(privacy: Privatize = OPEN, *, lr: Schedule) -> Chain:
    """Moments of noisy gradients (Algorithm 2)."""
    return chain(privacy, adam(lr))

def dp_rmsprop(privacy: Privatize = OPEN, *, lr: Schedule) -> Chain:
    """Second moments of noisy gradients."""
    return chain(privacy, rmsprop(lr))

def dp_adagrad(privacy: Privatize = OPEN, *, lr: Schedule) -> Chain:
    """Sums of squares of noisy gradients."""
    return chain(privacy, adagrad(lr))

def adadps(side: SideSource, privacy: Privatize = OPEN, *, lr: Schedule) -> Chain:
    """Side information before the clip (Algorithm 1): frequency, TF-IDF, any fixed A."""
    return chain(precondition(side), privacy, sgd(lr))

def adadps_public(data: PublicExamples, rule: Statistics, privacy: Privatize = OPEN,
                  *, lr: Schedule, refresh_every: int = 1) -> Chain:
    """The same with RMSProp, Adam or AdaGrad statistics of public gradients (option 1)."""
    return chain(precondition(public(data, rule, refresh_every=refresh_every)), privacy, sgd(lr))

def adadps_two_sided(before: SideSource, after: SideSource, privacy: Privatize = OPEN,
                     *, lr: Schedule) -> Chain:
    """Side information before the clip and after the noise, which it then shapes too."""
    return chain(precondition(before), privacy, precondition(after), sgd(lr))

def whitened(data: PublicExamples, privacy: Privatize = OPEN, *, lr: Schedule,
             refresh_every: int = 25, median_norm: float | None = None,
             damping: float = 0.1, outputs: bool = False) -> Chain:
    """A matrix on the inputs of every layer, from public examples, before the clip."""
    side = whiten(data, refresh_every=refresh_every, median_norm=median_norm, damping=damping,
                  outputs=outputs)
    return chain(precondition(side), privacy, sgd(lr))

def dp_sgd_weighted(side: SideSource, privacy: Privatize = OPEN, *, lr: Schedule,
                    at: str = "weight") -> Chain:
    """DP-SGD on rows weighted by side information and re-normalised: the third door."""
    return chain(reparametrise(side, at=at), privacy, sgd(lr))

def dp_r_pub(data: PublicExamples, rule: RMSPropStatistics, privacy: Privatize = OPEN,
             *, lr: Schedule, refresh_every: int = 1) -> Chain:
    """The same statistics after the noise."""
    return chain(privacy, precondition(public(data, rule, refresh_every=refresh_every)), sgd(lr))

def dp_adam_pub(data: PublicExamples, rule: RMSPropStatistics, privacy: Privatize = OPEN,
                *, lr: Schedule, beta1: float = 0.9, beta2: float = 0.9) -> Chain:
    """Public gradient mixed in, momentum, public second moment; both debiased."""
    return chain(privacy, mix(data, beta1), momentum(beta2, debias=True),
                 precondition(public(data, replace(rule, debias=True))), sgd(lr))

def pda_dpmd(data: PublicExamples, privacy: Privatize = OPEN, *, lr: Schedule, steps: int) -> Chain:
    """Private gradient fading into the public one on a cosine."""
    return chain(privacy, mix(data, cosine(steps)), sgd(lr))

def warm_start(data: PublicExamples, privacy: Privatize = OPEN, *, lr: Schedule,
               public_lr: float) -> Chain:
    """DP-SGD from weights pretrained on public data."""
    return chain(pretrain(data, rmsprop(public_lr), epochs=10), privacy, sgd(lr))

def ideal(private: Examples, rule: Statistics, privacy: Privatize = OPEN, *, lr: Schedule,
          batch_size: int) -> Chain:
    """AdaDPS with statistics of the private data: an upper bound, not private."""
    return chain(precondition(oracle(private, rule, batch_size=batch_size)), privacy, sgd(lr))

def adas(side: SideSource, lr: Schedule) -> Chain:
    """AdaDPS without privacy."""
    return chain(precondition(side), average(), sgd(lr))

def plain_sgd(lr: Schedule) -> Chain:
    """SGD without privacy."""
    return chain(average(), sgd(lr))

def plain_adam(lr: Schedule) -> Chain:
    """Adam without privacy."""
    return chain(average(), adam(lr))

def plain_rmsprop(lr: Schedule) -> Chain:
    """RMSProp without privacy."""
    return chain(average(), rmsprop(lr))
