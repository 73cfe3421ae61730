"""The methods of the tables: their grids, the order of their stages, scale-free settings."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import sparse

from adadps.accounting.samplers import poisson
from adadps.methods.side.public import AdamStatistics, GradientStatistics, RMSPropStatistics
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain
from adadps.training.evaluation import on_held_out
from adadps.training.fit import fit
from adadps_experiments.reproduce.text import recipes
from adadps_experiments.reproduce.text.jobs import SIZES
from adadps_experiments.reproduce.text.methods import TEXT_METHODS
from adadps_experiments.reproduce.text.problem import PublicSource, problem, zero_model
from support.small_corpora import small_corpus

LENGTHS = (0.5, 1.5, 4.0, 10.0)
PUBLIC = PublicSource(share=0.1)
CORPUS = small_corpus()
HERE = problem(CORPUS, recipes.PAPER, PUBLIC, 0)
STAGES = {
    "dp-sgd": "Privatize SGD",
    "dp-adam": "Privatize Adam",
    "dp-rmsprop": "Privatize RMSProp",
    "adadps": "Precondition Privatize SGD",
    "adadps-wordfreq": "Precondition Privatize SGD",
    "adadps-tfidf": "Precondition Privatize SGD",
    "adadps-two-sided": "Precondition Privatize Precondition SGD",
    "after-the-noise": "Privatize Precondition SGD",
    "dp-sgd-weighted": "Reparametrise Privatize SGD",
    "adadps-public": "Precondition Privatize SGD",
    "adadps-public-adam": "Precondition Privatize SGD",
    "dp-r-pub": "Privatize Precondition SGD",
    "dp-adam-pub": "Privatize Mix Momentum Precondition SGD",
    "pda-dpmd": "Privatize Mix SGD",
    "warm-start": "Pretrain Privatize SGD",
    "adadps-warm-start": "Pretrain Precondition Privatize SGD",
    "ideal": "Precondition Privatize SGD",
    "sgd": "Average SGD",
    "adam": "Average Adam",
    "adas": "Precondition Average SGD",
    "adas-public": "Precondition Average SGD",
    "public-only": "Average Adam",
}
"""The stages of each method; those before Privatize act per example."""
ALL = pytest.mark.parametrize("name", TEXT_METHODS)
ADAPTIVE = ("dp-adam", "dp-rmsprop")
NOT_PRIVATE = ("ideal", "sgd", "adam", "adas", "adas-public", "public-only")


def settings_of(name):
    return TEXT_METHODS[name].grid(LENGTHS)


def built(name, setting=None, *, sigma=1.5, steps=1000, given=HERE):
    return TEXT_METHODS[name].build(setting or settings_of(name)[5], given, sigma, steps)


def sources_of(chain):
    return [stage.side for stage in chain.stages if hasattr(stage, "side")]


def test_all_contenders_are_written_out_here():
    assert set(STAGES) == set(TEXT_METHODS)
    assert all(name == method.name for name, method in TEXT_METHODS.items())


@ALL
def test_every_method_has_sixteen_different_settings(name):
    for lengths in (LENGTHS, *(size.lengths for size in SIZES.values())):
        settings = TEXT_METHODS[name].grid(lengths)
        assert len(settings) == 16
        assert len({tuple(sorted(setting.items())) for setting in settings}) == 16
        for setting in settings:
            assert all(isinstance(value, float) for value in setting.values())
            assert setting["length"] > 0


@ALL
def test_every_setting_builds_a_chain_of_the_stages_in_their_order(name):
    for setting in settings_of(name):
        chain = built(name, setting)
        assert isinstance(chain, Chain)
        assert " ".join(type(stage).__name__ for stage in chain.stages) == STAGES[name]


@ALL
def test_settings_make_different_chains(name):
    chains = {
        (
            chain.release.clip_norm,
            chain.stages[-1].lr,
            *(str(source.provenance) + str(source) for source in sources_of(chain)),
            *(stage.update.lr for stage in chain.stages if hasattr(stage, "update")),
        )
        for chain in (built(name, setting) for setting in settings_of(name))
    }
    assert len(chains) == 16


@ALL
def test_private_methods_are_private_and_others_say_why_not(name):
    exposures = built(name).exposures
    if name in NOT_PRIVATE:
        expected = "reads private data" if name == "ideal" else "adds no noise"
        assert any(expected in reason for reason in exposures)
    else:
        assert exposures == ()
        assert built(name).release.noise_multiplier == 1.5
        assert built(name, sigma=0.0).exposures  # noise is only what was requested
    assert TEXT_METHODS[name].private == (name not in NOT_PRIVATE or name == "ideal")


@ALL
def test_only_methods_that_say_so_read_public_examples(name):
    """Public examples cost nothing, but a method that reads them is another method."""
    chain = built(name)
    data = [getattr(stage, "public", None) for stage in chain.stages]
    data += [getattr(source, "examples", None) for source in sources_of(chain)]
    reads = any(held is HERE.public for held in data)
    assert reads == (TEXT_METHODS[name].uses_public and not TEXT_METHODS[name].only_public)
    if name == "ideal":
        assert any(held is not None and held.examples is HERE.train for held in data)


def test_side_information_is_that_of_its_name():
    def values(name, at=0):
        return sources_of(built(name))[at].named["weight"][0].numpy()

    setting = settings_of("adadps")[5]
    for name, known in (
        ("adadps", CORPUS.frequencies),
        ("adadps-wordfreq", CORPUS.other_frequencies),
        ("adadps-two-sided", CORPUS.frequencies),
        ("dp-sgd-weighted", CORPUS.frequencies),
        ("after-the-noise", CORPUS.frequencies),
        ("adas", CORPUS.frequencies),
        ("adadps-warm-start", CORPUS.frequencies),
    ):
        f = known.values.numpy()
        shape = settings_of(name)[5]
        expected = np.maximum(f / f.max(), shape["floor"]) ** shape["power"]
        np.testing.assert_allclose(values(name), expected)
    assert isinstance(sources_of(built("adadps", setting))[0], Fixed)
    for name in ("adadps-public", "dp-r-pub", "dp-adam-pub", "adas-public", "ideal"):
        [source] = sources_of(built(name))
        assert isinstance(source, GradientStatistics)
        assert isinstance(source.statistics, RMSPropStatistics)
    [adam] = sources_of(built("adadps-public-adam"))
    assert isinstance(adam.statistics, AdamStatistics)


def test_both_readings_of_the_paper_are_tried_for_tf_idf():
    """A proportional to TF-IDF gives words of high score small steps; the inverse, large ones."""
    readings = set()
    for setting in settings_of("adadps-tfidf"):
        chain = built("adadps-tfidf", setting)
        values = sources_of(chain)[0].named["weight"][0].numpy()
        high, low = CORPUS.tfidf.argmax(), CORPUS.tfidf.argmin()
        readings.add(bool(values[high] > values[low]))
        score = np.maximum(CORPUS.tfidf / CORPUS.tfidf.max(), setting["floor"])
        expected = score ** setting["power"]
        np.testing.assert_allclose(values, expected / expected.max())
    assert readings == {True, False}


@ALL
def test_twice_the_steps_have_half_the_rate(name):
    for setting in settings_of(name):
        short, long = (built(name, setting, steps=steps).stages[-1].lr for steps in (500, 1000))
        if name in ADAPTIVE:
            assert long == pytest.approx(short / math.sqrt(2))
        elif TEXT_METHODS[name].private:
            assert long == pytest.approx(short / 2)
        else:
            assert long == short  # without noise, more steps need no smaller rate


@ALL
def test_a_longer_length_is_a_higher_rate(name):
    setting = settings_of(name)[0]
    low, high = (
        built(name, {**setting, "length": factor * setting["length"]}).stages[-1].lr
        for factor in (1, 3)
    )
    assert high == pytest.approx(3 * low)


def test_clip_norms_are_in_typical_norms_of_what_is_clipped():
    typical = HERE.typical.toarray()
    median = np.median(np.linalg.norm(typical, axis=1))
    assert built("dp-sgd", {"clip": 0.5, "length": 1.0}).release.clip_norm == pytest.approx(
        0.5 * median
    )
    setting = {"clip": 0.5, "length": 1.0, "floor": 0.03, "power": 0.5}
    f = CORPUS.frequencies.values.numpy()
    scaled = typical / np.sqrt(np.maximum(f / f.max(), 0.03))
    preconditioned = np.median(np.linalg.norm(scaled, axis=1))
    for name in ("adadps", "adadps-two-sided"):
        clip_norm = built(name, setting).release.clip_norm
        assert clip_norm == pytest.approx(0.5 * preconditioned)
    assert built("after-the-noise", setting).release.clip_norm == pytest.approx(0.5 * median)
    assert built("dp-sgd-weighted", setting).release.clip_norm == 0.5  # rows have norm one


@dataclass(frozen=True)
class Enlarged:
    """A recipe whose features are larger than those of another one."""

    recipe: recipes.Recipe
    factor: float

    def __call__(self, counts, idf):
        return sparse.csr_matrix(self.factor * self.recipe(counts, idf), dtype=np.float32)


def outputs_after(name, given, setting, steps=4):
    """Return outputs on the test texts after a few steps on all examples, without noise."""
    seen = []

    def look(outputs, _targets):
        seen.append(outputs.double().numpy())
        return 0.0

    data = given.public.examples if TEXT_METHODS[name].only_public else given.train
    fit(
        zero_model(given),
        given.corpus.loss,
        data,
        method=built(name, setting, sigma=0.0, steps=1000, given=given),
        sampler=poisson(examples=len(data), expected_size=len(data)),
        steps=steps,
        delta=1e-3,
        evaluate=[on_held_out("test texts", given.test.features, given.test.targets, seen=look)],
        progress=False,
    )
    return seen[-1]


@ALL
@pytest.mark.parametrize("place", [1, 15])
def test_features_of_another_scale_change_nothing(name, place):
    """The outputs move equally far, so that one grid fits all features."""
    larger = problem(CORPUS, Enlarged(recipes.PAPER, 7.0), PUBLIC, 0)
    setting = settings_of(name)[place]
    here, there = outputs_after(name, HERE, setting), outputs_after(name, larger, setting)
    assert np.abs(here).max() > 1e-5
    np.testing.assert_allclose(there, here, atol=2e-3 * np.abs(here).max())
