"""The call that is printed for a project of Opacus runs, and means the same."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import adadps
from adadps.errors import DataError, SettingError
from adadps.training.from_opacus import from_opacus

ROWS = 120
DATASET = TensorDataset(torch.randn(ROWS, 6), torch.randint(2, (ROWS,)))
LOADER = DataLoader(DATASET, batch_size=30, shuffle=True)
WITH_EPSILON = {"target_epsilon": 4.0, "target_delta": 1e-3, "epochs": 2, "max_grad_norm": 0.7}


def translated(optimizer=torch.optim.SGD, loader=LOADER, module=None, settings=None, **options):
    model = module or nn.Linear(6, 2)
    made = optimizer(model.parameters(), **(options or {"lr": 0.5}))
    return model, from_opacus(
        module=model, optimizer=made, data_loader=loader, **(settings or WITH_EPSILON)
    )


def run(text, model):
    names = {
        "adadps": adadps, "torch": torch, "model": model, "dataset": DATASET,
        "loss": adadps.losses.cross_entropy,
    }  # fmt: skip
    exec(text, names)
    return names["result"]


@pytest.mark.parametrize(
    ("optimizer", "options", "method"),
    [
        (torch.optim.SGD, {"lr": 0.5}, "> sgd(0.5)"),
        (torch.optim.SGD, {"lr": 0.5, "momentum": 0.9}, "update_with(SGD, lr=0.5, momentum=0.9)"),
        (torch.optim.AdamW, {"lr": 0.01}, "> update_with(AdamW, lr=0.01)"),
        (torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.9)}, "betas=(0.8, 0.9))"),
    ],
)
def test_the_printed_call_runs(optimizer, options, method):
    model, text = translated(optimizer, **options)
    result = run(text, model)
    assert method in result.method
    assert result.privacy.epsilon <= 4.0
    assert result.privacy.clip_norm == 0.7
    assert (result.privacy.steps, result.privacy.sampler["expected_size"]) == (8, 30)
    assert f"the number of examples, read off the data: {ROWS}" not in result.privacy.assumed_public


def test_a_given_noise_is_kept():
    given = {"noise_multiplier": 1.3, "max_grad_norm": 1.0}
    model, text = translated(settings=given)
    result = run(text.replace("delta=...", "delta=1e-3").replace("epochs=...", "epochs=1"), model)
    assert result.privacy.noise_multiplier == 1.3


def test_shuffled_batches_are_accounted_as_such():
    model, text = translated(settings={**WITH_EPSILON, "poisson_sampling": False})
    assert "here they cost more" in text
    assert run(text, model).privacy.sampler["sampling"] == "shuffled"


def test_what_has_no_counterpart_is_noted():
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    settings = {**WITH_EPSILON, "clipping": "per_layer", "alphas": [2]}
    _, text = translated(module=model, settings=settings, loader=DataLoader(
        DATASET, batch_size=30, num_workers=2))  # fmt: skip
    for note in ("GroupNorm", "clipping='per_layer'", "alphas: has no counterpart", "workers=2"):
        assert note in text


def test_settings_that_are_missing_are_asked_for():
    with pytest.raises(SettingError, match="make_private_with_epsilon"):
        translated(settings={"max_grad_norm": 1.0})


def noted(**more):
    """The printed call for a loader or settings that a project may have."""
    loader = more.pop("loader", LOADER)
    return translated(loader=loader, settings={**WITH_EPSILON, **more})[1]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"loader": DataLoader(DATASET, 30, sampler=WeightedRandomSampler([1.0] * ROWS, ROWS))},
         "WeightedRandomSampler: the run draws"),
        ({"loader": DataLoader(DATASET, 30, collate_fn=list)}, "padded to one length"),
        ({"loss_reduction": "sum"}, "multiplied"),
        ({"batch_first": False}, "the first axis"),
    ],
    ids=["sampler", "collate_fn", "sum", "batch_first"],
)  # fmt: skip
def test_settings_that_mean_something_else_here_are_noted(given, says):
    assert says in noted(**given)
    assert says not in noted()


def test_groups_keep_their_settings():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    biases = [p for n, p in model.named_parameters() if n.endswith("bias")]
    weights = [p for n, p in model.named_parameters() if n.endswith("weight")]
    groups = [
        {"params": weights[:1], "lr": 0.2, "weight_decay": 0.3},
        {"params": biases, "lr": 0.1},
        {"params": weights[1:], "lr": 0.5, "weight_decay": 0.3},
    ]
    optimizer = torch.optim.AdamW(groups, lr=9.0, weight_decay=0.0)
    torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    text = from_opacus(module=model, optimizer=optimizer, data_loader=LOADER, **WITH_EPSILON)
    assert "AdamW, lr=0.2, weight_decay=0.3, parameter_groups=" in text
    assert "{'*bias': {'lr': 0.1, 'weight_decay': 0.0}, '2.weight': {'lr': 0.5}}" in text
    assert "has a scheduler" in text
    assert run(text, model).privacy.steps == 8


def test_groups_are_named_one_by_one_where_a_pattern_would_reach_further():
    """The bias of packed projections is `in_proj_bias`, which ends like `out_proj.bias`."""
    model = nn.MultiheadAttention(4, 1)
    groups = [
        {"params": [p for n, p in model.named_parameters() if not n.endswith(".bias")]},
        {"params": [model.out_proj.bias], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.3)
    text = from_opacus(module=model, optimizer=optimizer, data_loader=LOADER, **WITH_EPSILON)
    assert "parameter_groups={'out_proj.bias': {'weight_decay': 0.0}}" in text


def test_a_model_for_several_processes_is_to_be_unwrapped():
    kind = type("DifferentiallyPrivateDistributedDataParallel", (nn.Sequential,), {})
    assert "give the model inside, `module.module`" in translated(module=kind(nn.Linear(6, 2)))[1]


def test_a_group_that_changes_the_rate_is_not_read_as_the_default():
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "lr": 0.25}], lr=7.0)
    text = from_opacus(module=model, optimizer=optimizer, data_loader=LOADER, **WITH_EPSILON)
    assert "dp_sgd(lr=0.25)" in text


def test_parameters_that_the_optimizer_does_not_have_are_noted():
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.5)
    text = from_opacus(module=model, optimizer=optimizer, data_loader=LOADER, **WITH_EPSILON)
    assert "does not have 2 trainable parameters (0.weight, ...)" in text
    model[0].requires_grad_(False)
    text = from_opacus(module=model, optimizer=optimizer, data_loader=LOADER, **WITH_EPSILON)
    assert "trainable" not in text


def test_clip_norms_by_layer_are_one_clip_norm():
    text = noted(max_grad_norm=[3.0, 4.0], clipping="per_layer")
    assert "clip_norm=5.0" in text
    assert "per_layer" in text


def test_a_stream_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from DATASET

    with pytest.raises(DataError, match="only iterates"):
        noted(loader=DataLoader(Stream(), batch_size=30))
