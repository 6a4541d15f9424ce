"""Arithmetic on shapes and byte strides. Knows neither tensors nor frameworks.

Everywhere, an axis of length 1 and the axes of a tensor without elements may have any stride: they
are never stepped along, so their strides say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

__all__ = [
    "c_strides",
    "extent",
    "is_aligned",
    "is_c_contiguous",
    "may_overlap",
    "stepped",
]


def c_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the byte strides of row-major order.

    >>> c_strides((2, 3, 4), itemsize=4)
    (48, 16, 4)
    """
    strides: list[int] = []
    step = itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def stepped(shape: Sequence[int], byte_strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return (length, byte stride) of each axis that is stepped along.

    >>> stepped((1, 3), (999, 4))
    [(3, 4)]
    """
    if 0 in shape:
        return []
    return [(n, step) for n, step in zip(shape, byte_strides, strict=True) if n > 1]


def is_c_contiguous(shape: Sequence[int], byte_strides: Sequence[int], itemsize: int) -> bool:
    """Say whether elements lie next to each other in row-major order.

    >>> is_c_contiguous((1, 3), (999, 4), itemsize=4)
    True
    >>> is_c_contiguous((3, 2), (4, 12), itemsize=4)
    False
    """
    expected = itemsize
    for length, step in reversed(stepped(shape, byte_strides)):
        if step != expected:
            return False
        expected *= length
    return True


def extent(shape: Sequence[int], byte_strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Return the bytes reached, [low, high) relative to the first element.

    >>> extent((3,), (-8,), itemsize=8)
    (-16, 8)
    >>> extent((0, 5), (8, 8), itemsize=8)
    (0, 0)
    """
    if prod(shape) == 0:
        return 0, 0
    reaches = [(length - 1) * step for length, step in stepped(shape, byte_strides)]
    return sum(r for r in reaches if r < 0), sum(r for r in reaches if r > 0) + itemsize


def may_overlap(shape: Sequence[int], byte_strides: Sequence[int], itemsize: int) -> bool:
    """Say whether two elements may lie on the same bytes, so that one write could change both.

    Never says no wrongly. Rarely says yes wrongly: only for axes whose steps interleave.

    >>> may_overlap((3, 4), (0, 8), itemsize=8)
    True
    >>> may_overlap((3, 4), (-32, 8), itemsize=8)
    False
    """
    reach = itemsize  # what one step along the next axis must clear
    for step, length in sorted((abs(s), n) for n, s in stepped(shape, byte_strides)):
        if step < reach:
            return True
        reach += step * (length - 1)
    return False


def is_aligned(ptr: int, shape: Sequence[int], byte_strides: Sequence[int], alignment: int) -> bool:
    """Say whether the address of every element is a multiple of `alignment` bytes.

    >>> is_aligned(64, (3,), (8,), 8), is_aligned(65, (3,), (8,), 8), is_aligned(64, (3,), (9,), 8)
    (True, False, False)
    """
    if 0 in shape:
        return True
    return not any(at % alignment for at in (ptr, *(s for _, s in stepped(shape, byte_strides))))
