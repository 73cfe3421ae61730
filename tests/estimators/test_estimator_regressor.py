"""The regressor: bounds, units, several targets, and how well it learns."""

import numpy as np
import pytest
import torch
from scipy import sparse

from adadps import AdaDPSRegressor

pytestmark = pytest.mark.filterwarnings("ignore::adadps.errors.AssumedPublicWarning")

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 10, (3000, 4))
Y = 3 * X[:, 0] - 2 * X[:, 1] + 5 + RNG.normal(size=3000)
KNOWN = {"bounds": (-20, 40), "feature_bounds": (0, 10), "accountant": "rdp"}


def test_held_out_fit_at_epsilon_2():
    """R² of least squares without privacy is 0.99 here, of the mean 0; five runs gave 0.99."""
    model = AdaDPSRegressor(epsilon=2.0, examples=2500, strict=True, **KNOWN)
    model.fit(X[:2500], Y[:2500])
    assert model.epsilon_ <= 2.0
    assert model.score(X[2500:], Y[2500:]) > 0.85


def test_coefficients_are_in_the_units_of_the_data():
    model = AdaDPSRegressor(epsilon=20.0, **KNOWN).fit(X, Y)
    np.testing.assert_allclose(X @ model.coef_ + model.intercept_, model.predict(X), atol=1e-9)
    np.testing.assert_allclose(model.coef_, [3, -2, 0, 0], atol=0.6)


def test_predictions_stay_within_the_bounds_and_features_are_clipped():
    model = AdaDPSRegressor(epsilon=20.0, epochs=20, bounds=(0, 1), accountant="rdp").fit(X, Y)
    found = model.predict(X)
    assert found.min() >= 0
    assert found.max() <= 1
    np.testing.assert_allclose(model.predict(X * 0 + 1e9), model.predict(X * 0 + X.max(0)))


def test_bounds_that_are_read_off_are_told_of():
    model = AdaDPSRegressor(epsilon=20.0, epochs=2, accountant="rdp").fit(X, Y)
    facts = model.privacy_.assumed_public
    assert any(fact.startswith("bounds, read off the data: targets from -") for fact in facts)
    assert "bounds, read off the data: features by column" in facts


def test_several_targets():
    targets = np.stack([Y, -Y], 1)
    bounds = ([-20, -40], [40, 20])
    options = {"feature_bounds": (0, 10), "accountant": "rdp"}
    model = AdaDPSRegressor(epsilon=20.0, bounds=bounds, **options).fit(X, targets)
    assert model.predict(X).shape == targets.shape
    assert model.score(X, targets) > 0.8
    assert model.coef_.shape == (2, 4)


def test_sparse_rows_are_scaled_around_zero_and_dense_ones_agree():
    bags = sparse.random(2000, 20, density=0.2, format="csr", rng=np.random.default_rng(0))
    y = np.asarray(bags[:, :10].sum(1)).ravel() - np.asarray(bags[:, 10:].sum(1)).ravel()
    model = AdaDPSRegressor(epsilon=50.0, bounds=(-4, 4), feature_bounds=(0, 1), accountant="rdp")
    model.fit(bags, y)
    assert model.score(bags, y) > 0.5
    np.testing.assert_allclose(model.predict(bags), model.predict(bags.toarray()))
    model.fit(bags.toarray(), y)
    np.testing.assert_allclose(model.predict(bags), model.predict(bags.toarray()))


def test_a_constant_column_has_no_weight():
    held = np.hstack([X, np.ones((3000, 1))])
    model = AdaDPSRegressor(epsilon=20.0, epochs=2, accountant="rdp").fit(held, Y)
    assert model.coef_[-1] == 0
    assert np.isfinite(model.predict(held)).all()


@pytest.mark.parametrize("outputs", [1, 2])
def test_any_module(outputs):
    def network(inputs, outputs):
        return torch.nn.Sequential(
            torch.nn.Linear(inputs, 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs)
        )

    model = AdaDPSRegressor(epsilon=20.0, module=network, lr=0.5, clip_norm=1.0, **KNOWN)
    targets = Y if outputs == 1 else np.stack([Y, Y], 1)
    assert model.fit(X, targets).score(X, targets) > 0.5
