"""Saved results: nothing is lost, nothing is overwritten, nothing in a file is executed."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from adadps import Result, dp_sgd, examples, fit, load_result, poisson, privatize
from adadps.errors import DataError
from adadps.report.result import Measurement, PrivacyStatement
from adadps.types import Accountant

PRIVATE = PrivacyStatement(
    epsilon=1.25,
    mechanism_epsilon=1.25,
    delta=1e-5,
    accountant="pld",
    relation="add or remove one",
    unit="example",
    clip_norm=0.5,
    noise_multiplier=1.1,
    steps=10,
    sampler={"kind": "poisson", "expected_size": 8.0},
    assumed_public=("the number of examples, declared as 100",),
)
EXPOSED = dataclasses.replace(
    PRIVATE,
    epsilon=math.inf,
    mechanism_epsilon=None,
    clip_norm=math.inf,
    noise_multiplier=0.0,
    not_private_because=("average() adds no noise",),
)


def result(privacy: PrivacyStatement = PRIVATE, **changed: object) -> Result:
    held = Result(
        privacy=privacy,
        method="privatize(C=0.5, σ=1.1) > sgd(0.1)",
        side_information=({"source": "Wörterbuch", "public_because": "printed", "digest": None},),
        settings={"lr": 0.1, "note": "ε"},
        history=(
            Measurement(5, 0.4, "test", "held out", "accuracy", 0.75),
            Measurement(10, 0.8, "test", "held out", "loss", math.nan),
        ),
        params={
            "weight": torch.tensor([[1.0, -0.0, 1e-30]]).T,  # a view that is not contiguous
            "bias": torch.tensor([math.pi], dtype=torch.float64),
        },
    )
    return dataclasses.replace(held, **changed)


@pytest.fixture
def folder(tmp_path) -> Path:
    return result().save(tmp_path / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- round trip ---------------------------------------------------------------------------------


@pytest.mark.parametrize("privacy", [PRIVATE, EXPOSED], ids=["private", "not private"])
def test_the_privacy_statement_comes_back(tmp_path, privacy):
    loaded = load_result(result(privacy).save(tmp_path / "run"))
    assert loaded.privacy == privacy
    assert str(loaded.privacy) == str(privacy)


def test_hazard_24_infinite_epsilon_stays_infinite(tmp_path):
    loaded = load_result(result(EXPOSED).save(tmp_path / "run"))
    assert loaded.privacy.epsilon == math.inf
    assert not loaded.privacy.private
    assert str(loaded.privacy) == "NOT PRIVATE (ε = ∞): average() adds no noise"


def test_weights_come_back_bit_by_bit(folder):
    found, expected = load_result(folder).params, result().params
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)


def test_history_comes_back_with_its_nan(folder):
    accuracy, loss = load_result(folder).history
    assert accuracy == result().history[0]
    assert math.isnan(loss.value)
    assert dataclasses.replace(loss, value=0.0) == dataclasses.replace(
        result().history[1], value=0.0
    )


def test_everything_else_comes_back(folder):
    found, expected = load_result(folder), result()
    for name in ("method", "side_information", "settings", "debug", "feature_weights"):
        assert getattr(found, name) == getattr(expected, name), name


def test_feature_weights_come_back_apart_from_the_parameters(tmp_path):
    weights = torch.tensor([0.25, 1.0])
    loaded = load_result(result(feature_weights=weights).save(tmp_path / "run"))
    assert torch.equal(loaded.feature_weights, weights)
    assert loaded.params.keys() == {"weight", "bias"}


def test_what_was_seen_in_debugging_comes_back(tmp_path):
    seen = ({"step": 1.0, "training_loss": 0.5},)
    assert load_result(result(debug=seen).save(tmp_path / "run")).debug == seen


def test_a_loaded_result_can_be_saved_again_unchanged(folder, tmp_path):
    again = load_result(folder).save(tmp_path / "elsewhere" / folder.name)
    assert contents(again) == contents(folder)


def test_the_json_is_strict_and_readable_by_other_programs(tmp_path):
    text = (result(EXPOSED).save(tmp_path / "run") / "result.json").read_text(encoding="utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    held = json.loads(text, parse_constant=refuse)
    assert held["private"] is False
    assert held["privacy"]["epsilon"] is None


def test_the_last_value_of_a_metric_is_found_by_name():
    assert result().last("accuracy", data="test") == 0.75


@pytest.mark.parametrize(("metric", "data"), [("recall", None), ("accuracy", "train")])
def test_a_metric_that_was_not_recorded_is_refused_with_those_that_were(metric, data):
    with pytest.raises(DataError, match="accuracy on test, loss on test"):
        result().last(metric, data)


# --- what is in the folder ----------------------------------------------------------------------


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.squeeze(1) - targets) ** 2


def test_hazard_23_a_trained_run_saves_weights_and_statement_only(tmp_path):
    model = nn.Linear(3, 1)
    trained = fit(
        model,
        squared,
        examples(torch.randn(50, 3), torch.randn(50)),
        method=dp_sgd(privatize(clip_norm=1.0, noise_multiplier=4.0), lr=0.1),
        sampler=poisson(examples=50, expected_size=5),
        steps=3,
        accountant=Accountant.RDP,
    )
    folder = trained.save(tmp_path / "run")
    assert contents(folder).keys() == {
        *("result.json", "weights.safetensors", "card.json", "card.md"),
    }
    with safe_open(folder / "weights.safetensors", framework="pt") as held:
        assert set(held.keys()) == {"weight", "bias"}
        assert torch.equal(held.get_tensor("weight"), model.weight)
    described = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert described.keys() == {
        *("format", "private", "privacy", "method", "side_information"),
        *("settings", "history", "debug", "public_facts"),
    }
    assert described["debug"] == []
    assert load_result(folder).privacy == trained.privacy


# --- saving -------------------------------------------------------------------------------------


def test_an_existing_folder_is_refused_and_keeps_its_files(folder, tmp_path):
    before = contents(folder)
    with pytest.raises(DataError, match=r"run.*nothing was overwritten"):
        result(EXPOSED).save(folder)
    assert contents(folder) == before
    assert list(tmp_path.iterdir()) == [folder]


def test_even_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist yet"):
        result().save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_refused_and_kept(tmp_path):
    path = tmp_path / "run"
    path.write_text("precious")
    with pytest.raises(DataError, match="nothing was overwritten"):
        result().save(path)
    assert path.read_text() == "precious"


def test_missing_folders_on_the_way_are_made(tmp_path):
    saved = result().save(tmp_path / "a" / "b" / "run")
    assert load_result(saved).method == result().method


def test_a_place_that_cannot_be_written_to_is_refused_with_its_path(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match="file"):
        result().save(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    "moment",
    [
        "report.result.save_file",
        "report.result.Result.describe",
        "files.os.replace",
        "files.sync",
    ],
)
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError])
def test_an_interrupted_save_leaves_nothing_behind(tmp_path, monkeypatch, moment, interruption):
    def interrupted(*_arguments: object) -> None:
        raise interruption

    monkeypatch.setattr(f"adadps.{moment}", interrupted)
    with pytest.raises((interruption, DataError)):
        result().save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_settings_that_json_cannot_hold_leave_nothing_behind(tmp_path):
    with pytest.raises((TypeError, DataError)):
        result(settings={"model": object()}).save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


# --- loading what is broken ---------------------------------------------------------------------


def refused(folder: Path) -> str:
    with pytest.raises(DataError) as error:
        load_result(folder)
    assert str(folder) in str(error.value)
    return str(error.value)


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    refused(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["result.json", "weights.safetensors"])
def test_a_missing_file_is_refused(folder, name):
    (folder / name).unlink()
    refused(folder)


BROKEN = {
    "nothing": b"",
    "cut off": b'{"format": 1, "privacy": {"eps',
    "not utf-8": b"\xff\xfe\xff",
    "another kind of json": b"[1, 2, 3]",
    "null": b"null",
    "only a format": b'{"format": 1}',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_statement_is_refused(folder, text):
    (folder / "result.json").write_bytes(text)
    refused(folder)


def rewritten(folder: Path, *path: str, value: object) -> Path:
    """Change one entry of the statement."""
    file = folder / "result.json"
    held = json.loads(file.read_text(encoding="utf-8"))
    entry = held
    for name in path[:-1]:
        entry = entry[name]
    entry[path[-1]] = value
    file.write_text(json.dumps(held), encoding="utf-8")
    return folder


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_format_is_refused(folder, version):
    message = refused(rewritten(folder, "format", value=version))
    expected = "another kind of file" if version is None else f"format {version!r}. Read it with"
    assert f"found {expected}" in message


def test_an_unknown_entry_of_the_privacy_statement_is_refused(folder):
    refused(rewritten(folder, "privacy", "trust_me", value=True))


def test_a_result_of_an_earlier_version_is_read(folder):
    file = folder / "result.json"
    held = json.loads(file.read_text(encoding="utf-8"))
    del held["privacy"]["charges"], held["public_facts"]
    file.write_text(json.dumps(held), encoding="utf-8")
    loaded = load_result(folder)
    assert (loaded.privacy, loaded.public_facts) == (PRIVATE, {})


def test_a_history_of_something_else_is_refused(folder):
    refused(rewritten(folder, "history", value=[{"step": 1}]))


@pytest.mark.parametrize("kept", [0, 4, 40, -1])
def test_cut_off_weights_are_refused(folder, kept):
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    refused(folder)


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path, str]]:
        return Path.write_text, (self.path, "executed")


def test_the_bomb_of_the_next_test_does_go_off(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("pack", ["pickle", "torch"])
@pytest.mark.parametrize("name", ["result.json", "weights.safetensors"])
def test_hazard_23_a_pickle_is_refused_and_not_executed(folder, tmp_path, pack, name):
    mark = tmp_path / "mark"
    if pack == "pickle":
        (folder / name).write_bytes(pickle.dumps(Bomb(mark)))
    else:
        torch.save({"weight": Bomb(mark)}, folder / name)
    refused(folder)
    assert not mark.exists()


# --- restoring a model --------------------------------------------------------------------------


def linear_result() -> Result:
    return result(params={"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.tensor([3.0])})


def test_restored_weights_are_those_of_the_result():
    model = nn.Linear(2, 1)
    assert linear_result().restore(model) is model
    assert model(torch.ones(1, 2)).item() == 6.0


WRONG = {
    "another width": nn.Linear(3, 1),
    "no bias": nn.Linear(2, 1, bias=False),
    "other names": nn.Sequential(nn.Linear(2, 1)),
}


@pytest.mark.parametrize("model", WRONG.values(), ids=WRONG.keys())
def test_another_model_is_refused_and_left_alone(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(DataError, match=r"Expected weights of shapes .*found .*Build the model"):
        linear_result().restore(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_frozen_parameters_are_left_alone():
    model = nn.Linear(2, 1)
    model.weight.requires_grad_(False)
    frozen = model.weight.clone()
    result(params={"bias": torch.tensor([3.0])}).restore(model)
    assert torch.equal(model.weight, frozen)
    assert model.bias.item() == 3.0
