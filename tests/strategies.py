"""Memory of every kind, drawn: shape, steps, axis order, dtype, byte order, offset, read-only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from .frameworks import numpy_dtype

# bytes past a 64-byte boundary
OFFSETS = (0, 0, 1, 2, 4, 8, 16, 32, 48, 63)


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory: `steps` says per axis how many elements one step moves."""

    dtype: str
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    order: tuple[int, ...]  # axes from the slowest to the fastest in memory
    offset: int = 0
    padding: int = 0  # bytes between one element and the next, as in a packed record
    swapped: bool = False
    read_only: bool = False
    seed: int = 0


@st.composite
def layouts(
    draw: Any,
    dtypes: frozenset[str],
    *,
    steps: tuple[int, ...] = (1, 1, 1, 2, -1, -2, 0),
    offsets: tuple[int, ...] = OFFSETS,
    packed: bool = True,
) -> Layout:
    dtype = draw(st.sampled_from(sorted(dtypes)))
    itemsize = numpy_dtype(dtype).itemsize
    ndim = draw(st.integers(0, 4))
    shape = tuple(draw(st.sampled_from((1, 2, 3, 4, 0, 5))) for _ in range(ndim))
    plain = draw(st.booleans())  # half of them contiguous: the case that is shared
    return Layout(
        dtype=dtype,
        shape=shape,
        steps=tuple(1 if plain else draw(st.sampled_from(steps)) for _ in range(ndim)),
        order=tuple(range(ndim) if plain else draw(st.permutations(range(ndim)))),
        offset=draw(st.sampled_from(offsets)),
        padding=0 if plain or not packed else draw(st.sampled_from((0, 0, 0, 1, itemsize))),
        swapped=dtype in _SWAPPABLE and packed and draw(st.sampled_from((False, False, True))),
        read_only=draw(st.sampled_from((False, False, True))),
        seed=draw(st.integers(0, 2**16)),
    )


_SWAPPABLE = {
    "int16", "int32", "int64", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
}  # fmt: skip


def _element_strides(layout: Layout) -> tuple[tuple[int, ...], int]:
    """Return the steps in elements, per axis, and how many elements the memory holds."""
    strides, count = [0] * len(layout.shape), 1
    for axis in reversed(layout.order):
        strides[axis] = count * layout.steps[axis]
        count *= max(layout.shape[axis] * abs(layout.steps[axis]), 1)
    if 0 in layout.shape:  # NumPy checks the strides of an empty array against its buffer
        strides = [abs(stride) for stride in strides]
    return tuple(strides), count


def array_of(layout: Layout) -> np.ndarray:
    """Build the NumPy array that lies in memory as the layout says, filled with random bits."""
    dtype = numpy_dtype(layout.dtype)
    if layout.swapped:
        dtype = dtype.newbyteorder()
    item = dtype.itemsize + layout.padding
    strides, count = _element_strides(layout)
    raw = np.random.default_rng(layout.seed).integers(0, 256, 2 * count * item + 128, "u1")
    start = -raw.ctypes.data % 64 + layout.offset
    if 0 not in layout.shape:
        for length, stride in zip(layout.shape, strides, strict=True):
            start += max(-stride * (length - 1), 0) * item
    in_bytes = tuple(item * stride for stride in strides)
    view = np.ndarray(layout.shape, dtype, buffer=raw.data, offset=start, strides=in_bytes)
    view.flags.writeable = not layout.read_only
    return view


def torch_of(layout: Layout) -> Any:
    """Build the torch tensor that lies in memory as the layout says: steps not below 0."""
    import torch

    size = numpy_dtype(layout.dtype).itemsize
    strides, count = _element_strides(layout)
    raw = np.random.default_rng(layout.seed).integers(0, 256, (count + 64) * size, "u1")
    if layout.dtype == "bool":
        raw &= 1
    memory = torch.frombuffer(raw.data, dtype=torch.uint8).clone()
    items = memory.view(getattr(torch, layout.dtype))
    return items.as_strided(layout.shape, strides, layout.offset // size)
