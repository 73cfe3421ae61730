"""scikit-learn's own checks, with the ones that cannot hold and why."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from adadps import AdaDPSClassifier, AdaDPSRegressor

# Much budget, so that what is checked is the manners and not the noise.
CLASSIFIER = AdaDPSClassifier(epsilon=300, epsilon_per_run=100, epochs=40)
REGRESSOR = AdaDPSRegressor(epsilon=300, epsilon_per_run=100, epochs=40)

FRESH_NOISE = "noise is fresh in every run: two fits on the same data must differ"
EXPECTED = {
    "AdaDPSClassifier": dict.fromkeys(
        (
            "check_classifier_data_not_an_array",
            "check_classifiers_multilabel_representation_invariance",
            "check_fit_idempotent",
            "check_supervised_y_2d",
        ),
        FRESH_NOISE,
    ),
    "AdaDPSRegressor": dict.fromkeys(
        (
            "check_fit_idempotent",
            "check_regressor_data_not_an_array",
            "check_regressors_int",
            "check_supervised_y_2d",
        ),
        FRESH_NOISE,
    ),
}


def expected_failures(estimator):
    return EXPECTED.get(type(estimator).__name__, {})


@pytest.mark.filterwarnings("ignore:Dense rows are normalised")
@pytest.mark.filterwarnings("ignore::adadps.errors.AssumedPublicWarning")
@pytest.mark.filterwarnings("ignore:This estimator, or one of its clones")  # one check pickles
@parametrize_with_checks(
    [CLASSIFIER, REGRESSOR],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
