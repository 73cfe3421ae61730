"""What makes tests cheaper where neither the accountant nor the checks of a model are tested."""

from functools import wraps

import pytest

from support.coarse_accounting import use_coarse_accounting, use_real_accounting

ROOMS = [
    *("audit", "cli", "data", "docs", "engine", "estimators", "hazards", "methods", "museum"),
    *("report", "training"),
]
DOCTESTS = {("src", "adadps", room) for room in ("estimators", "training")}
COARSE_ROOMS = {("experiments", "tests"), *(("tests", room) for room in ROOMS)}


@pytest.fixture(autouse=True, scope="module")
def _coarse_accounting(request):
    """In these rooms, and for experiments, PLD has a coarser grid and RDP fewer orders.

    Both still round up, so that a budget holds; noise multipliers by PLD differ by about 1e-3. The
    real grid and all orders are tested in accounting, golden, property and contract, and by
    doctests of other rooms. A test in these rooms asks for them by the fixture `real_accounting`.
    """
    where = request.path.relative_to(request.config.rootpath).parts
    if where[:2] in COARSE_ROOMS or where[:3] in DOCTESTS:
        with pytest.MonkeyPatch.context() as patch:
            use_coarse_accounting(patch.setattr)
            yield
    else:
        yield


@pytest.fixture
def real_accounting(monkeypatch):
    """The grid and the orders that users have."""
    use_real_accounting(monkeypatch.setattr)


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
