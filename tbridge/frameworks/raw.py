"""The frameworks' own ways, for comparison: what a program without tbridge writes.

Tables by framework name; what is in none of them is not compared. Functions import what they need
when they are called, so that listing costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = ["FRESH", "GPUS", "INTERN", "OWN_COPIES", "OWN_WAYS", "SAMPLES", "quiet"]

Way = tuple[str, Callable[[Any], Any]]  # how it is written, and the call
Sample = tuple[str, Any, Any]  # what it is, its values as a NumPy array, the tensor


def quiet() -> None:
    """Keep imports from printing what concerns nobody, unless the environment says otherwise."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # TensorFlow announces oneDNN before it knows its log level (2.21), unless oneDNN is off
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


def _array_to_torch(x: Any) -> Any:
    import torch

    return torch.from_numpy(x)


def _copied_array_to_torch(x: Any) -> Any:
    import torch

    return torch.from_numpy(x.copy())


def _array_to_tf(x: Any) -> Any:
    import tensorflow as tf

    return tf.constant(x)


def _torch_to_tf(x: Any) -> Any:
    import tensorflow as tf

    return tf.constant(x.numpy())


def _tf_to_torch(x: Any) -> Any:
    import torch

    return torch.from_numpy(x.numpy())


OWN_WAYS: dict[tuple[str, str], Way] = {
    ("numpy", "torch"): ("torch.from_numpy(x)", _array_to_torch),
    ("numpy", "tensorflow"): ("tf.constant(x)", _array_to_tf),
    ("torch", "numpy"): ("x.numpy()", lambda x: x.numpy()),
    ("torch", "tensorflow"): ("tf.constant(x.numpy())", _torch_to_tf),
    ("tensorflow", "numpy"): ("x.numpy()", lambda x: x.numpy()),
    ("tensorflow", "torch"): ("torch.from_numpy(x.numpy())", _tf_to_torch),
}

# of the samples that tbridge copies, where the plain call raises: what its message says to write
OWN_COPIES: dict[tuple[str, str], Way] = {
    ("numpy", "torch"): ("torch.from_numpy(x.copy())", _copied_array_to_torch),
    ("torch", "numpy"): ("x.resolve_conj().numpy()", lambda x: x.resolve_conj().numpy()),
}


def _arrays(batch: Any) -> Iterator[Sample]:
    yield "a batch", batch, batch
    yield "x[::-1]", batch[::-1], batch[::-1]


def _torch_tensors(batch: Any) -> Iterator[Sample]:
    import torch

    x = torch.from_numpy(batch)
    yield "a batch", batch, x
    yield "x.mT", batch.swapaxes(-1, -2), x.mT
    values = np.empty(batch.shape, "complex64")
    values.real, values.imag = batch, batch
    yield "x.conj()", values, torch.complex(x, -x).conj()


def _tf_tensors(batch: Any) -> Iterator[Sample]:
    import tensorflow as tf

    yield "a batch", batch, tf.constant(batch)
    yield "a tf.Variable", batch, tf.Variable(batch)


# tensors of a framework, made from an image batch without tbridge: the plainest first
SAMPLES: dict[str, Callable[[Any], Iterator[Sample]]] = {
    "numpy": _arrays,
    "torch": _torch_tensors,
    "tensorflow": _tf_tensors,
}


def _fresh_torch() -> Any:
    import torch

    return torch.empty(1000)


# a new tensor as the framework's own allocator places it
FRESH: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.empty(1000, "float32"),
    "torch": _fresh_torch,
}

# may hand out one tensor of one element to everybody, as `describe` says of a tensor
INTERN = frozenset({"tensorflow"})


def _torch_gpus() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _tf_gpus() -> list[str]:
    import tensorflow as tf

    return [device.name for device in tf.config.list_physical_devices("GPU")]


# the GPUs that a framework sees, by name
GPUS: dict[str, Callable[[], list[str]]] = {"torch": _torch_gpus, "tensorflow": _tf_gpus}
