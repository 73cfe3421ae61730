"""Graphs whose derivatives may be taken of a whole batch at once.

torch.func.vmap has computed the values, so that each belongs to one example. A derivative of such a
batch belongs to one example, too, if every step on the way back is torch's formula for an operation
and treats all entries alike. Some formulas do not: that of a product of all entries looks for a
zero anywhere in the batch, and takes another way if there is one. So only operations are accepted
that are listed here. On the way back through others, vmap keeps examples apart.
"""

from __future__ import annotations

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from adadps.engine.rules.structure import readers


def keeps_examples_apart(last: Tensor) -> bool:
    """Are all steps of the graph that ends here known to do so?"""
    return all(_is_known(node) for edge in readers([last.grad_fn]) for node in edge)


def _is_known(node: object) -> bool:
    if isinstance(node, BackwardCFunction):  # its backward pass is written in Python
        function: type = type(node)._forward_cls  # type: ignore[attr-defined]
        return function.__module__.startswith("adadps.")
    return type(node).__name__.rstrip("0123456789") in _KNOWN


_OF_ENTRIES = {
    "Add", "Clamp", "ClampMin", "Div", "Elu", "Exp", "Gelu", "Hardtanh", "LeakyRelu", "Log",
    "LogSigmoid", "MaskedFill", "Mul", "Neg", "Pow", "Relu", "Rsqrt", "Sigmoid", "Silu", "Softplus",
    "Sqrt", "Sub", "Tanh", "ToCopy", "Where",
}  # fmt: skip
_OF_FORM = {
    "Alias", "Cat", "Clone", "ConstantPadNd", "Expand", "Flip", "Permute", "Repeat", "ReshapeAlias",
    "Select", "Slice", "Split", "SplitWithSizes", "Squeeze", "Stack", "T", "Transpose", "Unbind",
    "Unfold", "UnsafeView", "Unsqueeze", "View",
}  # fmt: skip
_OF_AXES = {
    "Addmm", "AvgPool2D", "Baddbmm", "BinaryCrossEntropyWithLogits", "Bmm", "Convolution", "Gather",
    "LogSoftmax", "Mean", "Mm", "MseLoss", "NativeGroupNorm", "NativeLayerNorm", "NllLoss",
    "NllLoss2D", "Softmax", "Sum",
}  # fmt: skip
_KNOWN = {f"{name}Backward" for name in _OF_ENTRIES | _OF_FORM | _OF_AXES} | {"AccumulateGrad"}
