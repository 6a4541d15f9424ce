"""One row a framework: how to make a tensor from a NumPy array, and read one, without tbridge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def _torch_make(array: np.ndarray) -> Any:
    import torch

    raw = torch.frombuffer(bytearray(array.tobytes() or b"\0"), dtype=torch.uint8)
    flat = raw[: array.nbytes].clone().view(getattr(torch, array.dtype.name))
    return flat.reshape(array.shape)


def _torch_read(tensor: Any) -> np.ndarray:
    import torch

    name = str(tensor.dtype).removeprefix("torch.")
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.copy_(tensor.detach().reshape(-1))
    data = flat.view(torch.uint8).numpy().tobytes()
    return np.frombuffer(data, numpy_dtype(name)).reshape(tuple(tensor.shape))


def _tf_make(array: np.ndarray) -> Any:
    import tensorflow as tf

    return tf.constant(array)


def _tf_read(tensor: Any) -> np.ndarray:
    import tensorflow as tf

    # through an operation, so that memory which TensorFlow cannot use aborts here
    return np.array(tf.identity(tf.reshape(tensor, tensor.shape)).numpy(), copy=True)


def _tf_address(tensor: Any) -> int:
    import tensorflow as tf

    return np.asarray(tf.reshape(tensor, (-1,))).__array_interface__["data"][0]


SMALL = {n for n in dir(ml_dtypes) if n.startswith(("bfloat16", "float8_"))}
PLAIN = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
}


@dataclass(frozen=True)
class Row:
    name: str
    make: Callable[[np.ndarray], Any]
    read: Callable[[Any], np.ndarray]
    address: Callable[[Any], int]  # of the first element
    dtypes: frozenset[str]  # that this version has


FRAMEWORKS = {
    row.name: row
    for row in (
        Row(
            "numpy",
            make=lambda array: array.copy(),
            read=lambda array: np.array(array, copy=True),
            address=lambda array: array.__array_interface__["data"][0],
            dtypes=frozenset(PLAIN | SMALL),
        ),
        Row(
            "torch",
            make=_torch_make,
            read=_torch_read,
            address=lambda tensor: tensor.data_ptr(),
            dtypes=frozenset(PLAIN)
            | {"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}
            | {"float8_e8m0fnu"},
        ),
        Row(
            "tensorflow",
            make=_tf_make,
            read=_tf_read,
            address=_tf_address,
            dtypes=frozenset(PLAIN)
            | {"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}
            | {"float8_e4m3b11fnuz"},
        ),
    )
}

PAIRS = [(a, b) for a in FRAMEWORKS for b in FRAMEWORKS]
