"""What estimators pay: one call, several calls, searches; and copies of a model."""

import copy
import math
import os
import pickle
import pickletools

import numpy as np
import pytest
from joblib import parallel_config
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score

import adadps
from adadps import AdaDPSClassifier, AdaDPSRegressor, PrivacyWarning
from adadps.report.result import WHOLE_BUDGET_CLAIM

pytestmark = pytest.mark.filterwarnings("ignore::adadps.errors.AssumedPublicWarning")

X, Y = make_classification(400, 4, n_informative=3, n_redundant=0, random_state=0)
FEW = {"epochs": 4.0}


def classifier(**options):
    return AdaDPSClassifier(**{"epsilon": 2.0, "normalise_rows": True, **FEW, **options})


def fits_until_refused(model):
    for _ in range(50):
        try:
            model.fit(X, Y)
        except adadps.BudgetError:
            return
    raise AssertionError("never refused")


def test_a_single_fit_is_composed_by_pld_and_costs_its_epsilon():
    model = classifier(epsilon=1.0).fit(X[:60], Y[:60])
    assert model.privacy_.accountant == "pld"
    assert 0.99 < model.epsilon_ <= 1.0
    assert model.delta_ == 1 / 600
    assert model.ledger_.entries == model.privacy_.steps
    assert model.ledger_.budget == adadps.Budget(1.0, 1 / 600)


def test_calls_share_one_budget_and_the_one_that_does_not_fit_changes_nothing():
    model = classifier(epsilon_per_run=0.8)
    calls = 0
    while calls < 50:
        before = dict(vars(model))
        try:
            model.partial_fit(X, Y)
        except adadps.BudgetError as error:
            refusal = str(error)
            break
        calls += 1
        assert model.ledger_.epsilon(model.delta_) <= 2.0
    assert 2 <= calls < 50
    assert "Nothing was drawn" in refusal
    assert vars(model) == before
    steps = model.privacy_.steps
    assert model.ledger_.entries == calls * steps == model.privacy_.steps_paid
    assert model.epsilon_ == 2.0, "with several runs, the budget is the claim"
    assert model.result_.settings["claim"] == WHOLE_BUDGET_CLAIM
    assert "with 2 delta, if one was begun after looking at another" in str(model.privacy_)
    assert model.result_.settings["epsilon_of_this_run"] <= 0.8
    assert model.privacy_.accountant == "rdp"


def test_calls_go_on_from_the_weights_that_are_there():
    model = classifier(epsilon=400.0, epsilon_per_run=100.0)
    first = model.partial_fit(X, Y, classes=[0, 1]).coef_.copy()
    model.set_params(lr=1e-9).partial_fit(X, Y)
    np.testing.assert_allclose(model.coef_, first, atol=1e-5)
    assert "the classes, declared: 0, 1" in model.privacy_.assumed_public


def test_fit_then_partial_fit_needs_something_left():
    model = classifier().fit(X[:60], Y[:60])
    before = dict(vars(model))
    with pytest.raises(adadps.BudgetError, match="epsilon_per_run"):
        model.partial_fit(X, Y)
    assert vars(model) == before
    classifier(epsilon_per_run=0.5).fit(X, Y).partial_fit(X, Y)


def test_a_regressor_goes_on_as_well():
    model = AdaDPSRegressor(epsilon=2.0, epsilon_per_run=0.8, bounds=(0, 1), **FEW)
    model.partial_fit(X, Y).partial_fit(X, Y)
    assert model.epsilon_ == 2.0
    assert model.privacy_.steps_paid == model.ledger_.entries


def test_a_ledger_on_disk_is_shared_by_fits_and_clones(tmp_path):
    path = tmp_path / "shared.ledger"
    model = classifier(epsilon_per_run=0.8, ledger=str(path)).fit(X, Y)
    assert model.epsilon_ <= 0.8
    other = clone(model).fit(X, Y)
    assert other.epsilon_ == 2.0
    assert other.privacy_.steps_paid >= other.privacy_.steps
    with model.ledger_ as ledger:
        assert ledger.entries == 2 * model.privacy_.steps
        assert ledger.budget == adadps.Budget(2.0, 1 / 4000)
    spent = clone(model)
    fits_until_refused(spent)
    held = spent.result_
    with adadps.DiskLedger(path) as ledger:
        entries = ledger.entries
    with pytest.raises(adadps.BudgetError):
        spent.fit(X[:, :2], Y)
    assert spent.result_ is held
    assert spent.n_features_in_ == 4
    with adadps.DiskLedger(path) as ledger:
        assert ledger.entries == entries


def test_a_ledger_keeps_the_budget_it_began_with(tmp_path):
    path = tmp_path / "shared.ledger"
    adadps.DiskLedger(path, budget=adadps.Budget(3.0, 1e-5)).close()
    with pytest.raises(adadps.errors.ContractError, match="epsilon = 3"):
        classifier(ledger=path).fit(X, Y)
    model = classifier(epsilon=3.0, epsilon_per_run=0.5, ledger=path).fit(X, Y)
    assert model.delta_ == 1e-5


def test_a_refused_fit_makes_no_ledger(tmp_path):
    path = tmp_path / "new.ledger"
    with pytest.raises(adadps.AdadpsError):
        classifier(ledger=path, method="nothing").fit(X, Y)
    assert not path.exists()


def test_grid_search_on_a_ledger_pays_for_every_trial(tmp_path):
    path = tmp_path / "search.ledger"
    model = classifier(epsilon=20.0, epsilon_per_run=2.0, ledger=path)
    search = GridSearchCV(model, {"clip_norm": [0.1, 0.5]}, cv=2, error_score="raise").fit(X, Y)
    found = search.best_estimator_
    with found.ledger_ as ledger:
        assert len(adadps_runs(path)) == 2 * 2 + 1
        assert ledger.epsilon(found.delta_) > found.result_.settings["epsilon_of_this_run"]
    assert found.epsilon_ == 20.0
    assert found.privacy_.tuning_trials is None, "all five are in epsilon"


def test_grid_search_stops_where_the_budget_does(tmp_path):
    model = classifier(ledger=tmp_path / "search.ledger")
    search = GridSearchCV(model, {"clip_norm": [0.1, 0.5]}, cv=2, error_score="raise")
    with pytest.raises(adadps.BudgetError):
        search.fit(X, Y)


def test_fits_of_clones_without_a_ledger_are_counted():
    model = classifier(accountant="rdp")
    cross_val_score(model, X, Y, cv=3)
    assert model.fit(X, Y).privacy_.tuning_trials == 4
    assert classifier(accountant="rdp").fit(X, Y).privacy_.tuning_trials is None
    assert classifier(accountant="rdp", tuning_trials=7).fit(X, Y).privacy_.tuning_trials == 7


def test_a_declared_number_of_trials_does_not_hide_fits_that_were_counted():
    model = classifier(accountant="rdp", tuning_trials=0)
    assert model.fit(X, Y).privacy_.tuning_trials == 0
    assert model.fit(X, Y).privacy_.tuning_trials == 2
    assert clone(model).fit(X, Y).privacy_.tuning_trials == 3
    assert model.set_params(tuning_trials=9).fit(X, Y).privacy_.tuning_trials == 9


def test_fits_that_are_in_epsilon_are_no_uncounted_trials(tmp_path):
    model = classifier(epsilon_per_run=0.5)
    model.partial_fit(X, Y).partial_fit(X, Y)
    assert model.privacy_.tuning_trials is None
    clone(model).fit(X, Y)
    assert model.partial_fit(X, Y).privacy_.tuning_trials == 2
    shared = clone(model).set_params(ledger=tmp_path / "a.ledger")
    for _ in range(2):
        assert shared.fit(X, Y).privacy_.tuning_trials == 3, "two without the ledger, and this one"


def test_fits_on_another_ledger_are_in_nobodys_epsilon_and_are_counted(tmp_path):
    model = classifier(epsilon_per_run=0.5, tuning_trials=0)
    first, second = (clone(model).set_params(ledger=tmp_path / name) for name in "ab")
    assert first.fit(X, Y).fit(X, Y).privacy_.tuning_trials == 0, "both in the epsilon of a"
    assert second.fit(X, Y).privacy_.tuning_trials == 3, "two on a, and this one"
    assert model.fit(X, Y).privacy_.tuning_trials == 4, "all of them, and this one"
    assert first.partial_fit(X, Y).privacy_.tuning_trials == 3, "on b, in memory, and this one"


def test_a_copy_in_this_process_shares_the_count_of_fits():
    model = classifier(accountant="rdp").fit(X, Y).fit(X, Y)
    assert copy.deepcopy(model).fit(X, Y).privacy_.tuning_trials == 3
    assert model.fit(X, Y).privacy_.tuning_trials == 4


def test_fits_in_threads_are_counted():
    model = classifier(accountant="rdp")
    with parallel_config(backend="threading"):
        cross_val_score(model, X, Y, cv=4, n_jobs=2)
    assert model.fit(X, Y).privacy_.tuning_trials == 5


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def forked(model):
    child = os.fork()
    if child == 0:  # in the child
        os._exit(0)
    os.waitpid(child, 0)
    return model


@pytest.mark.parametrize("fits", [0, 1, 2])
@pytest.mark.parametrize("sent", [pickled, forked])
@pytest.mark.parametrize("declared", [None, 0, 1])
def test_fits_in_other_processes_leave_the_number_of_trials_unknown(sent, fits, declared):
    """Whatever was counted here may be too few, on either side, and a claim of less is not kept."""
    model = classifier(accountant="rdp", tuning_trials=declared, classes=[0, 1])
    clone(model)
    for _ in range(fits):
        model.fit(X, Y)
    copied = sent(model)
    for one in (copied, clone(model), clone(copied)):
        if declared == 1 and one._fit_count.fits.total() == 0:
            assert one.fit(X, Y).privacy_.tuning_trials == 1
            continue
        with pytest.warns(PrivacyWarning, match="not known") as caught:
            assert one.fit(X, Y).privacy_.tuning_trials is None
        assert [warning.filename for warning in caught] == [__file__]
    assert clone(copied).set_params(tuning_trials=9).fit(X, Y).privacy_.tuning_trials == 9


def test_an_estimator_that_was_sent_before_it_had_any_clone_is_known_to_be():
    model = classifier(accountant="rdp", tuning_trials=0)
    pickle.dumps(model)
    with pytest.warns(PrivacyWarning, match="not known"):
        assert model.fit(X, Y).privacy_.tuning_trials is None


def test_no_warning_where_all_processes_pay_from_one_ledger(tmp_path):
    model = classifier(epsilon_per_run=0.5, ledger=tmp_path / "a.ledger")
    assert pickled(model).fit(X, Y).epsilon_ <= 0.5
    assert model.fit(X, Y).epsilon_ == 2.0


def test_a_search_in_several_processes_counts_nothing_or_pays_for_all(tmp_path):
    """With n_jobs > 1: unknown without a ledger, all in epsilon with one."""
    options = {"cv": 2, "n_jobs": 2, "error_score": "raise"}
    model = classifier(accountant="rdp", tuning_trials=0).fit(X, Y)
    search = GridSearchCV(model, {"clip_norm": [0.1, 0.5]}, **options)
    with pytest.warns(PrivacyWarning, match="ledger=path"):
        search.fit(X, Y)
    assert search.best_estimator_.privacy_.tuning_trials is None
    path = tmp_path / "search.ledger"
    model = classifier(epsilon=20.0, epsilon_per_run=2.0, ledger=path, delta=1e-5)
    search = GridSearchCV(model, {"clip_norm": [0.1, 0.5]}, **options).fit(X, Y)
    assert len(adadps_runs(path)) == 2 * 2 + 1
    assert search.best_estimator_.epsilon_ == 20.0


def adadps_runs(path):
    from adadps.accounting.ledger.summary import summarise

    return summarise(path)["runs"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_hazard_23_a_copy_keeps_its_statement_and_cannot_spend_twice(copied):
    model = classifier(epsilon_per_run=0.5).partial_fit(X, Y)
    twin = copied(model)
    assert twin.privacy_ == model.privacy_
    np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))
    with pytest.raises(NotFittedError, match="stays with"):
        _ = twin.ledger_
    with pytest.raises(adadps.BudgetError, match="does not travel"):
        twin.partial_fit(X, Y)
    model.partial_fit(X, Y)


def test_hazard_23_no_generator_and_no_ledger_in_a_pickle():
    held = pickle.dumps(classifier(accountant="rdp").fit(X, Y))
    names = {arg for _, arg, _ in pickletools.genops(held) if isinstance(arg, str)}
    for word in ("generator", "randomgen", "noise.", "ledger.", "MemoryLedger", "random"):
        assert not [name for name in names if word.lower() in name.lower()], word


def test_a_copy_goes_on_with_its_ledger_on_disk(tmp_path):
    model = classifier(epsilon_per_run=0.5, ledger=tmp_path / "kept.ledger").partial_fit(X, Y)
    twin = pickle.loads(pickle.dumps(model)).partial_fit(X, Y)
    with twin.ledger_ as ledger:
        assert ledger.entries == 2 * model.privacy_.steps
    for name in list(tmp_path.iterdir()):
        name.unlink()
    with pytest.raises(adadps.BudgetError, match="found none or another"):
        twin.partial_fit(X, Y)
    assert not list(tmp_path.iterdir())


def test_the_result_is_saved_with_the_claim_of_all_calls(tmp_path):
    model = classifier(epsilon_per_run=0.5).partial_fit(X, Y).partial_fit(X, Y)
    model.result_.save(tmp_path / "model")
    held = adadps.load_result(tmp_path / "model")
    assert held.privacy == model.privacy_
    assert held.privacy.epsilon == 2.0


def test_side_information_of_private_data_is_not_private():
    private = adadps.side.frequencies_of_private_data(np.abs(X), source="the training set")
    model = classifier(side=private, accountant="rdp")
    with pytest.raises(adadps.BudgetError):
        model.fit(X, Y)
    assert not hasattr(model, "result_")
    assert not math.isinf(classifier(accountant="rdp").fit(X, Y).epsilon_)
