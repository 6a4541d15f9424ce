"""Leases as Python sees them: who owns memory, who borrows it, what shares it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tbridge import _core
from tbridge.contracts import Lease, TensorSpec

__all__ = ["covering", "overlap"]


def covering(spec: TensorSpec) -> list[Lease]:
    """Return the live leases whose bytes overlap the tensor's, oldest first."""
    low, high = spec.extent
    return [Lease(entry) for entry in _core.leases(low, high - low, *spec.device.dlpack)]


def overlap(a: TensorSpec, b: TensorSpec) -> bool:
    """Say whether some byte belongs to an element of both; exact, as `np.shares_memory`."""
    if a.device != b.device:
        return False
    (low, high), (other_low, other_high) = a.extent, b.extent
    if low >= other_high or other_low >= high:
        return False
    return np.shares_memory(_addresses(a), _addresses(b))


class _Span:
    """The addresses of a tensor as NumPy's array interface has them. Nobody reads the bytes."""

    def __init__(self, spec: TensorSpec) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (spec.ptr, True),
            "shape": (*spec.shape, spec.itemsize),  # byte by byte, so that there is always an axis
            "strides": (*spec.byte_strides, 1),
            "typestr": "|u1",
        }


def _addresses(spec: TensorSpec) -> np.ndarray[Any, Any]:
    return np.asarray(_Span(spec))
