"""What a private score counts, and what trials must not share."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from adadps import dp_sgd
from adadps.errors import ContractError, DataError
from adadps.training.tuning import private_accuracy
from support.tunings import FEATURES, LABELS, NOISE, tuned


class Tagger(nn.Module):
    """Fifty answers an example."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2 * 50)

    def forward(self, rows):
        return self.layer(rows).view(-1, 2, 50)


class Mixing(nn.Module):
    """Looks across rows, but only when it is not trained."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, rows):
        outputs = self.layer(rows)
        return outputs if self.training else outputs - outputs.mean(0)


def counted(monkeypatch, score, model, rows):
    """The count before its noise."""
    seen = []
    kept = replace(score, examples=score.examples.take(torch.tensor(rows)))

    class Noise:
        def release(self, total, **_options):
            seen.append(float(total))
            return total

    params = dict(model.named_parameters())
    result = replace(tuned().result, params={name: p.detach() for name, p in params.items()})
    kept.value(result, model, Noise())
    return seen[0]


@pytest.mark.parametrize("make_model", [lambda: nn.Linear(3, 2), Mixing, Tagger])
def test_hazard_21_one_example_moves_a_private_count_by_at_most_one(monkeypatch, make_model):
    score = private_accuracy("all", FEATURES, LABELS, examples=60, noise_multiplier=9.0)
    model = make_model().eval()
    whole = counted(monkeypatch, score, model, list(range(60)))
    for left_out in (0, 7, 59):
        rows = [row for row in range(60) if row != left_out]
        assert abs(whole - counted(monkeypatch, score, model, rows)) <= 1


def test_hazard_21_a_private_accuracy_needs_one_answer_an_example():
    for wrong in (LABELS.reshape(-1, 1), LABELS.double()):
        with pytest.raises(DataError, match="one class per example"):
            private_accuracy("all", FEATURES, wrong, examples=60, noise_multiplier=9.0)


def test_options_that_are_not_known_are_refused():
    with pytest.raises(ContractError, match="bugdet"):
        tuned(bugdet=3)


def test_hazard_21_trials_that_go_on_from_each_other_are_refused():
    held = []

    def warm(setting):
        model = nn.Linear(3, 2)
        if held:
            model.load_state_dict(held[-1].state_dict())
            with torch.no_grad():
                model.weight += 1  # as if it had been trained since
        held.append(model)
        return model, dp_sgd(NOISE, lr=setting["lr"])

    def counting(setting):
        held.append(None)
        return nn.Linear(3, 2), dp_sgd(NOISE, lr=1 / len(held))

    for maker in (warm, counting):
        held.clear()
        if maker is warm:
            held.append(nn.Linear(3, 2))
        with pytest.raises(ContractError, match="second call"):
            tuned(maker=maker)
