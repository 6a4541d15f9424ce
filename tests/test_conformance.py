"""The same rules over every ordered pair of frameworks, and every layout that each can have."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tbridge
from tbridge import _core, testing

from .frameworks import FRAMEWORKS, PAIRS
from .strategies import array_of, layouts, torch_of

TARGETS = list(FRAMEWORKS)


def test_the_table_has_every_framework_that_can_be_a_target():
    assert set(FRAMEWORKS) == {f.name for f in tbridge.frameworks() if f.is_target}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_table_has_the_dtypes_that_the_framework_declares(name):
    spec = tbridge.inspect(np.zeros(3, "float16"))
    bfloat = tbridge.inspect(tbridge.empty((3,), "bfloat16"))
    framework = next(f for f in tbridge.frameworks() if f.name == name)
    declared = framework.accepts(spec).dtypes | framework.accepts(bfloat).dtypes
    assert declared == FRAMEWORKS[name].dtypes


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_passes_the_checks_that_plugins_run(name):
    row = FRAMEWORKS[name]
    assert testing.check_framework(name, row.make, row.read) > 100


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_dtype_that_both_have_arrives_bit_for_bit(source, target):
    for dtype in sorted(FRAMEWORKS[source].dtypes & FRAMEWORKS[target].dtypes):
        for array in testing.samples(frozenset({dtype})):
            x = FRAMEWORKS[source].make(array)
            y = tbridge.convert(x, to=target)
            assert testing.bits_of(FRAMEWORKS[target].read(y)) == testing.bits_of(array)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_dtype_that_the_target_lacks_names_the_nearest(source, target):
    lacking = FRAMEWORKS[source].dtypes - FRAMEWORKS[target].dtypes
    for dtype in lacking:
        x = FRAMEWORKS[source].make(np.ones(3).astype(getattr(__import__("ml_dtypes"), dtype)))
        with pytest.raises(tbridge.errors.UnsupportedDTypeError, match=f"has no {dtype}") as caught:
            tbridge.convert(x, to=target)
        assert caught.value.nearest in FRAMEWORKS[target].dtypes
        y = tbridge.convert(x, to=target, dtype=caught.value.nearest)
        assert FRAMEWORKS[target].read(y).astype("float64").tolist() == [1.0, 1.0, 1.0]


def expected_of(values: np.ndarray, target: str) -> np.ndarray:
    """Return the right values: a bool is whether its byte is not 0, but NumPy keeps the byte."""
    if values.dtype == bool and target != "numpy":
        return values.view("u1") != 0
    return values


_decisions: dict[int, tuple] = {}


def check(x, values, target):
    """Check one conversion against its plan, and its plan against all others of the signature."""
    right = expected_of(values, target)
    read = FRAMEWORKS[target].read
    testing.check_pair(x, target, read, expected=right)
    plan = tbridge.explain(x, to=target)
    if values.size and plan.zero_copy:
        y = tbridge.convert(x, to=target)
        assert FRAMEWORKS[target].address(y) == tbridge.inspect(x).ptr
    signature = _core.signature(x, _core.framework(target))
    if signature is not None:  # what the native path tells apart decides everything
        decision = (plan.zero_copy, plan.writable, plan.immutable, plan.read_only)
        decision += (plan.read_only_result, plan.identity)
        assert _decisions.setdefault(signature, decision) == decision, (signature, str(plan))


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=250)
@given(data=st.data())
def test_numpy_memory_of_every_kind_arrives(target, data):
    dtypes = FRAMEWORKS["numpy"].dtypes & FRAMEWORKS[target].dtypes
    layout = data.draw(layouts(dtypes))
    x = array_of(layout)
    before = x.tobytes()
    check(x, np.array(x, copy=True), target)
    assert x.tobytes() == before


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=150)
@given(data=st.data())
def test_torch_memory_of_every_kind_arrives(target, data):
    dtypes = FRAMEWORKS["torch"].dtypes & FRAMEWORKS[target].dtypes
    layout = data.draw(
        layouts(dtypes, steps=(1, 1, 1, 2, 3, 0), offsets=(0, 0, 16, 32, 64), packed=False)
    )
    x = torch_of(layout)
    check(x, FRAMEWORKS["torch"].read(x), target)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=60)
@given(data=st.data())
def test_tensorflow_memory_arrives(target, data):
    dtypes = FRAMEWORKS["tensorflow"].dtypes & FRAMEWORKS[target].dtypes
    layout = data.draw(layouts(dtypes, steps=(1,), offsets=(0,), packed=False))
    values = np.ascontiguousarray(array_of(layout))
    if values.dtype == bool:
        values = values.view("u1") != 0
    check(
        FRAMEWORKS["tensorflow"].make(values.reshape(layout.shape)),
        values.reshape(layout.shape),
        target,
    )


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=100)
@given(data=st.data())
def test_a_writable_result_never_smears_one_write_over_several_elements(target, data):
    layout = data.draw(layouts(frozenset({"int32", "float64"})))
    x = array_of(layout)
    y = tbridge.convert(x, to=target, writable=None if target != "numpy" else True)
    if target == "tensorflow" or y.ndim == 0 or 0 in x.shape:
        return
    before = FRAMEWORKS[target].read(y)
    first = (0,) * y.ndim
    y[first] = 1 if before[first] != 1 else 2
    changed = (FRAMEWORKS[target].read(y) != before) & ~(before != before)
    assert int(changed.sum()) == 1


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=60)
@given(data=st.data())
def test_a_cast_that_was_asked_for_is_numpys_cast(target, data):
    names = frozenset({"int8", "uint16", "int64", "float16", "float32", "float64", "bool"})
    layout = data.draw(layouts(names))
    goal = data.draw(st.sampled_from(sorted(names)))
    x = array_of(layout)
    x = np.where(np.isfinite(x), x, 0).astype(x.dtype) if x.dtype.kind == "f" else x
    with np.errstate(all="ignore"):
        right = (x.view("u1") != 0 if x.dtype == bool else x).astype(goal)
        y = tbridge.convert(x, to=target, dtype=goal)
    if target == "numpy" and layout.dtype == goal == "bool":
        right = x  # nothing to convert
    assert testing.bits_of(FRAMEWORKS[target].read(y)) == testing.bits_of(right)


@pytest.mark.parametrize("target", ["numpy", "torch"])
@settings(max_examples=80)
@given(data=st.data())
def test_out_receives_the_values_and_comes_back(target, data):
    dtypes = FRAMEWORKS["numpy"].dtypes & FRAMEWORKS[target].dtypes
    layout = data.draw(layouts(dtypes))
    x = array_of(layout)
    values = np.array(x, copy=True)
    out = FRAMEWORKS[target].make(np.zeros(x.shape, x.dtype.newbyteorder("=")))
    assert tbridge.convert(x, to=target, out=out) is out
    right = expected_of(values, "torch")  # a copy is always normalised
    assert testing.bits_of(FRAMEWORKS[target].read(out)) == testing.bits_of(right)


@functools.cache
def three():
    return np.arange(3, dtype="float32")


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_named_by_name_alias_module_or_example(target):
    import sys

    framework = next(f for f in tbridge.frameworks() if f.name == target)
    example = FRAMEWORKS[target].make(np.zeros(1, "int8"))
    for to in (target, *framework.aliases, sys.modules[framework.module], example):
        y = tbridge.convert(three(), to=to)
        assert type(y) is type(example)
        assert tbridge.inspect(y).dtype == "float32"
