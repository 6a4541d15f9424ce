"""The arithmetic of layout agrees with NumPy's, on everything NumPy can build."""

import numpy as np
from hypothesis import given, settings

from tbridge import layout

from .frameworks import FRAMEWORKS, numpy_dtype
from .strategies import array_of, layouts

ANY = layouts(FRAMEWORKS["numpy"].dtypes)


@given(ANY)
def test_contiguity_is_numpys(drawn):
    x = array_of(drawn)
    said = layout.is_c_contiguous(x.shape, x.strides, x.itemsize)
    assert said == x.flags.c_contiguous


@given(ANY)
def test_c_strides_are_numpys(drawn):
    dtype = numpy_dtype(drawn.dtype)
    made = np.zeros(drawn.shape, dtype)
    assert layout.is_c_contiguous(
        drawn.shape, layout.c_strides(drawn.shape, dtype.itemsize), dtype.itemsize
    )
    if made.size:
        assert layout.c_strides(drawn.shape, dtype.itemsize) == made.strides


@given(ANY)
def test_the_extent_is_numpys_byte_bounds(drawn):
    x = array_of(drawn)
    low, high = layout.extent(x.shape, x.strides, x.itemsize)
    if x.size:
        bounds = np.lib.array_utils.byte_bounds(x)
        start = x.__array_interface__["data"][0]
        assert (start + low, start + high) == bounds
    else:
        assert low == high == 0


@settings(max_examples=400)
@given(ANY)
def test_elements_that_share_bytes_are_never_missed(drawn):
    x = array_of(drawn)
    places = np.zeros(x.shape, dtype=int)
    for axis, (length, step) in enumerate(zip(x.shape, x.strides, strict=True)):
        shape = [1] * x.ndim
        shape[axis] = length
        places = places + (np.arange(length) * step).reshape(shape)
    starts = np.sort(places.ravel())
    overlap = bool((np.diff(starts) < x.itemsize).any())
    said = layout.may_overlap(x.shape, x.strides, x.itemsize)
    assert said >= overlap
    if drawn.padding == 0 or not overlap:
        assert said == overlap


@given(ANY)
def test_alignment_is_numpys(drawn):
    x = array_of(drawn)
    if x.dtype.kind in "biufc" and x.size:
        pointer = x.__array_interface__["data"][0]
        alignment = x.dtype.itemsize // (2 if x.dtype.kind == "c" else 1)
        assert layout.is_aligned(pointer, x.shape, x.strides, alignment) == x.flags.aligned
