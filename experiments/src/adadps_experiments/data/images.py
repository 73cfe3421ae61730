"""Load MNIST and Fashion-MNIST: images as bytes, with their labels."""

from __future__ import annotations

import gzip

import numpy as np
from numpy.typing import NDArray

from adadps.errors import DataError
from adadps_experiments.data.finding import require
from adadps_experiments.data.named_sets import FASHION_MNIST, MNIST

Bytes = NDArray[np.uint8]
Split = tuple[Bytes, Bytes]
"""Images of shape (rows, 28, 28), and labels."""


def mnist() -> tuple[Split, Split]:
    """Return the training and the test digits."""
    with np.load(require(MNIST, MNIST.files[0]), allow_pickle=False) as held:
        return (held["x_train"], held["y_train"]), (held["x_test"], held["y_test"])


def fashion_mnist() -> tuple[Split, Split]:
    """Return the training and the test pictures of clothes."""
    paths = [require(FASHION_MNIST, file) for file in FASHION_MNIST.files]
    contents = [gzip.decompress(path.read_bytes()) for path in paths]
    images, labels, test_images, test_labels = map(_idx, contents)
    return (images, labels), (test_images, test_labels)


def _idx(content: bytes) -> Bytes:
    """Read an array of bytes in the IDX format.

    >>> _idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 6])).tolist()
    [5, 6]
    """
    dimensions = content[3]
    begin = 4 + 4 * dimensions
    shape = [int(size) for size in np.frombuffer(content[4:begin], ">u4")]
    if content[:3] != b"\0\0\x08" or len(content) != begin + int(np.prod(shape)):
        raise DataError(
            "Expected bytes in the IDX format, found another header or length. Fetch the data set "
            "again."
        )
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)
