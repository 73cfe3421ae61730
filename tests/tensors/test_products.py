"""Products by oneDNN: rows that ignore their neighbours, all digits, and torch's derivatives."""

from functools import partial

import pytest
import torch
from torch.func import grad, jvp, vmap
from torch.nn import functional

from adadps.tensors import products

SHAPES = [(1000, 784), (30, 500), (784, 1000), (256, 64), (65, 300), (17, 1100), (3, 4096)]
SIZES = (16, 32, 48, 80, 96, 288, 1024, 2048)

by_onednn = pytest.mark.skipif(not products._READY, reason="torch multiplies here")


@by_onednn
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("turned", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_is_bit_equal_in_batches_of_any_size_and_at_any_place(shape, turned, threads):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(*shape, generator=generator)
    weight = weight.T if turned else weight
    rows = torch.randn(2048, weight.shape[1], generator=generator)
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        first = products.product(rows[:16], weight)
        for size in SIZES:
            assert torch.equal(products.product(rows[:size], weight)[:16], first), size
            moved = torch.cat([rows[16:size], rows[:16]])
            assert torch.equal(products.product(moved, weight)[-16:], first), size
    finally:
        torch.set_num_threads(usual)
    assert torch.equal(products.product(rows[:16], weight), first)  # in one thread, or in two


@pytest.mark.parametrize("by_torch", [False, True], ids=["onednn", "torch"])
@pytest.mark.parametrize("turned", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("outputs", [1, 2, 3, 5, 8, 10, 17])
def test_rows_of_small_layers_are_bit_equal_at_every_place(monkeypatch, outputs, turned, by_torch):
    """MKL alone moves them by up to 2e-6 of their size if another row comes before them."""
    if by_torch:
        monkeypatch.setattr(products, "_READY", False)
    monkeypatch.setattr(products, "LARGE", 1)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(48, 100, generator=generator)
    for inputs in (2, 5, 7, 31, 100):
        weight = torch.randn(outputs, inputs, generator=generator)
        weight, given = (weight.T, rows[:, :outputs]) if turned else (weight, rows[:, :inputs])
        for multiply in (products.product, products.linear):
            first = multiply(given, weight)
            assert torch.equal(multiply(given.roll(1, 0), weight).roll(-1, 0), first), inputs
            for size in (16, 32):
                assert torch.equal(multiply(given[5 : 5 + size], weight), first[5 : 5 + size])
    torch.testing.assert_close(first, functional.linear(given, weight), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_products_are_off_by_as_many_roundings_as_they_have_terms_at_most(shape, turned):
    """The bounds on norms and on sums in float32 count on it."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.rand(*shape, generator=generator)
    weight = weight.T if turned else weight
    rows = torch.rand(64, weight.shape[1], generator=generator)
    found = products.product(rows, weight).double()
    exact = rows.double() @ weight.double().T
    assert ((found - exact).abs() <= weight.shape[1] * 2.0**-24 * exact).all()


@by_onednn
def test_all_digits_of_float32_are_multiplied():
    """Of a product of one term, bfloat16 would leave 8 of the 24 bits, and TF32 11."""
    odd = 1 + 2.0**-23
    found = products.product(torch.full((256, 256), odd), torch.eye(256))
    assert (found == odd).all()


@pytest.mark.parametrize("name", ["ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"])
@pytest.mark.parametrize("mode", ["BF16", "any", "TF32"])
def test_onednn_is_not_used_where_it_may_drop_digits(monkeypatch, name, mode):
    monkeypatch.setenv(name, mode)
    assert not products._is_ready()
    monkeypatch.setenv(name, "strict")
    assert products._is_ready() == products._READY


def test_torch_multiplies_what_onednn_does_not_take(monkeypatch):
    large, none, small = torch.randn(128, 128), torch.randn(0, 128), torch.randn(4, 128)
    rows = torch.randn(16, 128)
    monkeypatch.setattr(products, "_READY", True)
    assert products._by_onednn(rows, large)
    assert not products._by_onednn(rows, none)
    assert not products._by_onednn(rows, small)
    assert not products._by_onednn(rows.double(), large.double())
    assert not products._by_onednn(rows[:0], large)
    assert not products._by_onednn(rows.to("meta"), large.to("meta"))
    with torch.autocast("cpu"):
        assert not products._by_onednn(rows, large)
    torch.set_float32_matmul_precision("medium")  # torch would pass it on to oneDNN
    try:
        assert not products._by_onednn(rows, large)
    finally:
        torch.set_float32_matmul_precision("highest")
    torch._C._set_mkldnn_enabled(False)
    try:
        assert not products._by_onednn(rows, large)
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert products.linear(rows, none).shape == (16, 0)
    assert products.product(rows[:0], large).shape == (0, 128)


def _in_other_places(tensor):
    """The same numbers with other strides: transposed, spread out, and within others."""
    spread = torch.full([2 * size + 1 for size in tensor.shape], torch.nan)
    apart = spread[tuple(slice(1, None, 2) for _ in tensor.shape)]
    apart.copy_(tensor)
    turned = tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor
    return [apart, turned, torch.cat([tensor, tensor])[len(tensor) :]]


def test_factors_and_biases_may_lie_in_memory_in_any_way():
    rows, weight, bias = torch.randn(32, 100), torch.randn(90, 100), torch.randn(90)
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-3)
    expected = functional.linear(rows, weight, bias)
    for given in _in_other_places(rows):
        close(products.product(given, weight, bias), expected)
    for given in _in_other_places(weight):
        close(products.product(rows, given, bias), expected)
    for given in _in_other_places(bias):
        close(products.product(rows, weight, given), expected)
    one = [t[:1].expand(t.shape) for t in (rows, weight, bias)]
    close(products.product(*one), functional.linear(*one))
    wide = [t[:, :1].expand(t.shape) for t in (rows, weight)]
    close(products.product(*wide), functional.linear(*wide))


@pytest.mark.parametrize("bias", [torch.randn(1), torch.randn(32, 90)], ids=["one", "each"])
def test_other_biases_than_one_per_output_are_left_to_torch(bias):
    rows, weight = torch.randn(32, 100), torch.randn(90, 100)
    expected = rows @ weight.T + bias
    torch.testing.assert_close(products.product(rows, weight, bias), expected)
    torch.testing.assert_close(products.linear(rows, weight, bias), expected)


def test_small_layers_inside_of_vmap_are_left_to_torch(monkeypatch):
    """One example decides, not the batch: how many there are must not matter."""
    monkeypatch.setattr(products, "WORTH_A_FUNCTION", 2**17)
    called = []
    monkeypatch.setattr(products, "_by_onednn", lambda rows, _: bool(called.append(rows.shape)))
    small, large = torch.randn(128, 128), torch.randn(1024, 128)
    for examples in (1, 1000):
        vmap(lambda row: products.linear(row, small))(torch.randn(examples, 2, 128))
        assert not called
    vmap(lambda row: products.linear(row, large))(torch.randn(3, 2, 128))
    assert called


# --- derivatives ---


@pytest.fixture(autouse=True)
def _always_worth_it(monkeypatch):
    monkeypatch.setattr(products, "WORTH_A_FUNCTION", 0)


@pytest.mark.parametrize("shape", [(32, 100), (4, 5, 100), (100,)], ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_derivatives_are_those_of_torch(shape, biased):
    rows, weight, bias = _problem(shape, biased)
    above = torch.randn(*shape[:-1], 90)

    def gradients(multiply):
        leaves = [t.clone().requires_grad_() for t in (rows, weight, bias) if t is not None]
        return torch.autograd.grad(multiply(*leaves), leaves, above)

    for found, expected in zip(
        gradients(products.linear), gradients(functional.linear), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_second_derivatives_are_those_of_torch():
    rows, weight, bias = _problem((100,), True)

    def penalty(multiply):
        def slope(row):
            return grad(lambda x: multiply(x, weight, bias).square().sum())(row).square().sum()

        return grad(slope)(rows)

    found, expected = penalty(products.linear), penalty(functional.linear)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.filterwarnings("ignore:`torch.jit")  # torch loads its own formulas
def test_derivatives_along_a_direction_are_those_of_torch():
    given = _problem((32, 100), True)
    along = tuple(torch.randn_like(t) for t in given)
    for found, expected in zip(
        jvp(products.linear, given, along), jvp(functional.linear, given, along), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    only = jvp(lambda rows: products.linear(rows, given[1]), given[:1], along[:1])[1]
    torch.testing.assert_close(only, along[0] @ given[1].T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("in_dims", [(0, None, None), (1, None, None), (0, 0, 0), (None, 0, None),
                                     (0, None, 0)], ids=str)  # fmt: skip
def test_examples_multiply_beside_each_other(in_dims):
    """Shared weights, as always; and weights that are computed for each example."""
    each = torch.randn(8, 8, 100), torch.randn(8, 90, 100), torch.randn(8, 90)
    given = [one[0] if dim is None else one for one, dim in zip(each, in_dims, strict=True)]
    found = vmap(products.linear, in_dims)(*given)
    expected = vmap(functional.linear, in_dims)(*given)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_gradients_of_single_examples_are_those_of_torch():
    layer = torch.nn.Linear(100, 90)
    rows = torch.randn(16, 1, 100)
    own = {name: value.detach() for name, value in layer.named_parameters()}

    def of(multiply):
        def loss(params, row):
            return multiply(row, params["weight"], params["bias"]).tanh().sum()

        return vmap(grad(loss), (None, 0))(own, rows)

    found, expected = of(products.linear), of(functional.linear)
    for name in own:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-4)


def _problem(shape, biased):
    torch.manual_seed(0)
    return torch.randn(*shape), torch.randn(90, 100), torch.randn(90) if biased else None


@pytest.mark.parametrize("outputs", [2, 16, 30])
@pytest.mark.parametrize("bias", [False, True])
def test_small_products_lie_in_memory_as_torch_s_do(outputs, bias):
    """What is padded and cut again can be viewed in another shape, as models and sums do."""
    rows, weight = torch.randn(3, 5, 7), torch.randn(outputs, 7)
    found = products.linear(rows, weight, torch.randn(outputs) if bias else None)
    assert found.is_contiguous()
    assert products.product(rows[0], weight).view(-1).shape == (5 * outputs,)


def test_parts_of_larger_matrices_are_packed_for_onednn():
    """With gaps between rows a product took a thousand times as long."""
    whole = torch.randn(20, 20)
    assert products._packed(whole[:19, :19]).is_contiguous()
    for plain in (whole, whole.T, whole[:19], whole[:19].T):
        assert products._packed(plain).data_ptr() == plain.data_ptr(), "nothing is copied"
