"""What makes tests cheaper where neither the accountant nor the checks of a model are tested."""

from functools import wraps

import pytest

from support.coarse_pld import use_coarse_pld

ROOMS = ["audit", "cli", "docs", "estimators", "hazards", "methods", "museum", "report", "training"]
COARSE_ROOMS = {("experiments", "tests"), *(("tests", room) for room in ROOMS)}


@pytest.fixture(autouse=True, scope="module")
def _coarse_pld(request):
    """In these rooms, and for experiments, PLD has a grid ten times as coarse: a tenth of the time.

    It still rounds up, so that a budget holds; noise multipliers differ by about 1e-3. PLD on its
    real grid is tested in accounting, golden, property and contract, and by doctests.
    Within these rooms a test asks for it by the fixture `real_pld`.
    """
    where = request.path.relative_to(request.config.rootpath).parts[:2]
    if where in COARSE_ROOMS:
        with pytest.MonkeyPatch.context() as patch:
            use_coarse_pld(patch.setattr)
            yield
    else:
        yield


@pytest.fixture
def real_pld(monkeypatch):
    """The grid that users have."""
    from adadps.accounting import epsilon

    monkeypatch.setattr(epsilon, "DISCRETISATION", 1e-4)
    monkeypatch.setattr(epsilon, "_KNOWN", {})


@pytest.fixture
def checked_once(monkeypatch):
    """The checks of a model before its run are made for the first run of a test only.

    An audit trains hundreds of times in the same form; the checks take most of a run of one step.
    """
    from adadps.engine.passes import validation

    for name, check in list(vars(validation).items()):
        if name.lstrip("_").startswith("require_"):
            monkeypatch.setattr(validation, name, _once(check))


def _once(check):
    done = []

    @wraps(check)
    def checked(*given):
        if not done:
            check(*given)
            done.append(True)

    return checked
