"""Hazard 35: whoever reads a late table sees all of it with all its noise, or nothing at all.

`SETTLED` are reads that give every row its noise. `REFUSED` are reads that torch does not announce:
they see NaN, or end in an error. A view of the memory (`VIEWS`) sees the table as it was when it
was last asked for, whole: it must not tell which rows have moved since.
"""

import copy
import io
import multiprocessing.reduction
import pickle
import threading
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils.dlpack import from_dlpack, to_dlpack

from support.late_tables import BATCHES, TABLES, WORDS, begun, take

WIDTH = 8
tables = pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)


class OtherTensor(torch.Tensor):
    """A class with rules of its own, which unwraps whatever it is given."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return torch.Tensor.as_subclass(func(*args, **(kwargs or {})), torch.Tensor)


def without_hooks(parameter):
    with torch._C.DisableTorchFunctionSubclass():
        return parameter * 1.0


def gradient(table, transform):
    """A gradient that is the weights themselves, by torch.func over named parameters."""

    def half_square(params):
        return (params[table.name] ** 2).sum() / 2

    return transform(half_square, dict(table.model.named_parameters()))[table.name]


def shared(thing):
    file = io.BytesIO()
    multiprocessing.reduction.ForkingPickler(file, pickle.HIGHEST_PROTOCOL).dump(thing)
    return pickle.loads(file.getvalue())


def stepped(table):
    """An optimizer of torch between two steps, with a gradient of zero."""
    table.parameter.grad = torch.zeros(table.parameter.shape)
    torch.optim.SGD(table.model.parameters(), lr=1.0).step()
    table.parameter.grad = None
    return table.parameter


def reparametrised(table):
    with _reparametrize_module(table.model, dict(table.model.named_parameters())):
        return table.parameter * 1


def loaded(table):
    other = copy.deepcopy(table.model)
    other.load_state_dict(table.model.state_dict())
    return other.get_parameter(table.name)


def in_a_vector(table):
    """Of a table that lies in memory by features, torch itself makes no vector."""
    rows = [p if p.is_contiguous() else p.contiguous() for p in table.model.parameters()]
    return parameters_to_vector(rows).view(table.parameter.shape)


def by_foreach(table):
    return torch._foreach_mul([table.kept], 1.0)[0]


def exported(table):
    return load(save({"w": table.kept.detach().contiguous()}))["w"]


def in_numpy(table):
    return torch.from_numpy(np.array(np.from_dlpack(table.kept.detach())))


def by_pointer(table):
    import ctypes

    kept = table.kept.detach()
    floats = (ctypes.c_float * kept.untyped_storage().size().__floordiv__(4)).from_address(
        kept.data_ptr()
    )
    return torch.frombuffer(floats, dtype=torch.float32).as_strided(kept.shape, kept.stride())


def by_call(table):
    named = dict(table.model.named_parameters())
    return functional_call(table.model, named, (table.inputs,)).movedim(0, table.axis)


def by_thread(table):
    found = []
    reader = threading.Thread(target=lambda: found.append(table.kept.detach().clone()))
    reader.start()
    reader.join()
    return found[0]


SETTLED = {
    "view": lambda table: table.kept.view_as(table.kept),
    "flatten": lambda table: table.kept.flatten().view(table.kept.shape),
    "data": lambda table: table.kept.data,
    "detach": lambda table: table.kept.detach(),
    "storage": lambda table: (
        table.kept.detach()
        .new_empty(0)
        .set_(table.kept.untyped_storage(), 0, table.kept.shape, table.kept.stride())
    ),
    "data_ptr": by_pointer,
    "torch.as_tensor": lambda table: torch.as_tensor(table.kept),  # the parameter itself
    "torch.asarray": lambda table: torch.asarray(table.kept),
    "tolist": lambda table: torch.tensor(table.kept.tolist()),
    "item by item": lambda table: torch.tensor([[x.item() for x in row] for row in table.kept]),
    "copy.copy": lambda table: copy.copy(table.kept),
    "deepcopy": lambda table: copy.deepcopy(table.kept),
    "pickle": lambda table: pickle.loads(pickle.dumps(table.kept)),
    "shared with processes": lambda table: shared(table.kept.detach()),
    "shared parameter": lambda table: shared(table.kept),
    "__array__": lambda table: torch.from_numpy(np.array(table.kept.detach())),
    "numpy by dlpack": in_numpy,
    "__dlpack__": lambda table: from_dlpack(table.kept.detach().__dlpack__()),
    "safetensors": exported,
    "parameters_to_vector": in_a_vector,
    "foreach": by_foreach,
    "an optimizer": stepped,
    "functional_call": by_call,
    "stateless": reparametrised,
    "load_state_dict": loaded,
    "another thread": by_thread,
    "torch.stack": lambda table: torch.stack([table.kept])[0],
    "einsum": lambda table: torch.einsum("ij->ij", table.kept),
    "broadcast": lambda table: torch.broadcast_tensors(table.kept, torch.zeros(1))[0],
    "out": lambda table: (
        torch.mul(table.kept, 1.0, out=torch.empty(table.kept.shape))
        if not table.kept.requires_grad
        else torch.mul(table.kept.detach(), 1.0, out=torch.empty(table.kept.shape))
    ),
    "into another": lambda table: torch.empty(table.kept.shape).copy_(table.kept.detach()),
    "buffer protocol": lambda table: torch.from_numpy(
        np.asarray(memoryview(table.kept.detach().numpy())).copy()
    ),
    "memory format": lambda table: table.kept.contiguous(),
    "autograd": lambda table: torch.autograd.grad((table.kept**2).sum() / 2, table.kept)[0],
    "a second run": lambda table: begun(table).params[table.name],
}

REFUSED = {
    "as_subclass": lambda table: table.kept.as_subclass(torch.Tensor),
    "nn.Parameter": lambda table: nn.Parameter(table.kept),
    "torch.tensor": lambda table: torch.tensor(table.kept),
    "torch.Tensor": lambda table: torch.Tensor(table.kept),
    "to_dlpack": lambda table: from_dlpack(to_dlpack(table.kept)),
    "_make_subclass": lambda table: torch.Tensor._make_subclass(OtherTensor, table.kept),
    "another class": lambda table: torch.zeros(1).as_subclass(OtherTensor) + table.kept,
    "hooks switched off": lambda table: without_hooks(table.kept),
    "vmap": lambda table: torch.func.vmap(lambda row: row * 1)(table.kept),
    "func.grad": lambda table: gradient(table, lambda f, p: torch.func.grad(f)(p)),
    "func.grad_and_value": lambda table: gradient(
        table, lambda f, p: torch.func.grad_and_value(f)(p)[0]
    ),
    "func.vjp": lambda table: gradient(
        table, lambda f, p: torch.func.vjp(f, p)[1](torch.tensor(1.0))[0]
    ),
    "func.jacrev": lambda table: gradient(table, lambda f, p: torch.func.jacrev(f)(p)),
    "func.jvp": lambda table: torch.func.jvp(
        lambda w: w * w / 2, (table.kept,), (torch.ones(table.kept.shape),)
    )[1],
    "func.functionalize": lambda table: torch.func.functionalize(lambda w: w * 1)(table.kept),
    "jit.trace": lambda table: torch.jit.trace(lambda w: w * 1, (torch.zeros(1),))(table.kept),
}
"""By functions of C that ask no class, or by classes and contexts that pass over ours."""


def trained(make):
    """A run with noise that waits; its table was last asked for after two steps."""
    table = make(WIDTH)
    run = begun(table, loss=lambda outputs, _: outputs.sum(1))
    take(run, 2)
    asked = table.rows(run.params[table.name])
    take(run, 1)
    return table, run, asked


def quietly(read, table):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about unusual calls
        return table.rows(read(table))


@tables
@pytest.mark.parametrize("read", SETTLED.values(), ids=SETTLED)
def test_hazard_35_every_announced_read_sees_all_noise(make, read):
    table, run, asked = trained(make)
    seen = quietly(read, table)
    assert seen.isfinite().all()
    assert (seen != asked).any(1).all(), "every row has got the noise of the last step"
    assert torch.equal(seen, table.rows(table.kept))
    del run


@tables
@pytest.mark.parametrize("read", REFUSED.values(), ids=REFUSED)
def test_hazard_35_what_torch_does_not_announce_sees_nothing(make, read):
    table, run, asked = trained(make)
    try:
        seen = quietly(read, table)
    except (RuntimeError, TypeError):
        seen = None  # torch itself refuses
    settled = table.rows(table.kept)
    assert seen is None or seen.isnan().all()
    assert settled.isfinite().all()
    assert (settled != asked).any(1).all(), "and disturbs nothing"
    del run


VIEWS = {
    "data": lambda parameter, _: parameter.data,
    "detach": lambda parameter, _: parameter.detach(),
    "numpy": lambda parameter, _: torch.from_numpy(parameter.detach().numpy()),
    "dlpack": lambda parameter, _: from_dlpack(parameter.detach()),
    "copy.copy": lambda parameter, _: copy.copy(parameter).detach(),
    "view": lambda parameter, _: parameter.view_as(parameter).detach(),
    "row": lambda parameter, _: parameter[:].detach(),
    "run.params": lambda _, run: next(iter(run.params.values())),
    "state_dict": lambda _, run: next(iter(run._stepper.model.state_dict().values())),
}


@tables
@pytest.mark.parametrize("begin", [0, 1, 3], ids=["before", "after one step", "after three"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_hazard_35_a_view_does_not_tell_which_rows_moved(make, view, begin):
    """All rows of it move together, when the table is asked for, or none does."""
    table = make(WIDTH)
    run = begun(table, loss=lambda outputs, _: outputs.sum(1))
    take(run, begin)
    alias = view(table.kept, run)
    before = table.rows(alias)
    for _ in BATCHES[begin:-1]:
        take(run, 1)
        assert torch.equal(table.rows(alias), before), "no row has moved"
    now = table.rows(table.kept)
    after = table.rows(alias)
    moved = (after != before).any(1)
    assert moved.all() or not moved.any(), "whole, or not at all"
    assert torch.equal(after, now) or torch.equal(after, before)


@tables
def test_hazard_35_writes_by_any_announced_way_stay(make):
    table, run, _ = trained(make)
    for value, write in enumerate(
        (
            lambda: table.kept.data.fill_(1.0),
            lambda: run.params[table.name].fill_(2.0),
            lambda: table.model.load_state_dict({table.name: torch.full(table.kept.shape, 3.0)}),
        ),
        start=1,
    ):
        write()
        run._stepper.weights.read(None)
        assert (table.rows(run.params[table.name]) == value).all()


@tables
def test_hazard_35_a_graph_over_a_step_is_refused(make):
    """Its weights are gone: neither those before nor those after are in its memory."""
    table, run, _ = trained(make)
    loss = (table.kept**2).sum()
    take(run, 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@tables
def test_hazard_35_a_reader_in_a_thread_sees_whole_tables(make):
    """Each read is all rows at one step: finite, and the same until the next step."""
    table = make(WIDTH)
    run = begun(table, loss=lambda outputs, _: outputs.sum(1), batches=BATCHES * 20)
    stop, seen = threading.Event(), []

    def reading():
        while not stop.wait(0.001):
            seen.append(bool(table.kept.detach().clone().isfinite().all()))

    reader = threading.Thread(target=reading)
    reader.start()
    take(run, 60)
    stop.set()
    reader.join()
    assert seen
    assert all(seen)
    assert torch.equal(table.rows(table.kept), table.rows(run.params[table.name]))


@tables
def test_afterwards_the_memory_is_the_one_of_before(make):
    table = make(WIDTH)
    table.kept.data = table.kept.data.T.contiguous().T if table.axis else table.kept.data
    alias = table.kept.data
    run = begun(table)
    take(run, len(BATCHES))
    assert type(table.kept) is nn.Parameter
    assert table.kept.isfinite().all()
    assert len(table.rows(table.kept)) == WORDS
    if not table.axis:  # the layout of a linear layer changes for the time of a run
        assert alias.data_ptr() == table.kept.data_ptr()
