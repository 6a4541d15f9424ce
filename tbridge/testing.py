"""The conformance checks as plain functions, so that a plug-in can run what tbridge's tests run.

`check_framework(framework, make, read)` runs them all against NumPy and back. Each check raises
`AssertionError` with what fell short. `make` and `read` must not use tbridge: the code under test
is not its own witness.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tbridge import contracts, registry
from tbridge.convert import convert, empty, explain, leases, shares_memory
from tbridge.errors import CopyRequiredError
from tbridge.frameworks.numpy import dtype_of

__all__ = ["bits_of", "check_framework", "check_pair", "samples"]

Make = Callable[[Any], Any]
Read = Callable[[Any], Any]


def bits_of(array: Any) -> tuple[tuple[int, ...], str, bytes]:
    """Return shape, dtype name and row-major native bytes: equal means equal bit for bit.

    >>> bits_of(np.array([1], ">i2")) == bits_of(np.array([1], "<i2"))
    True
    """
    native = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    return native.shape, native.dtype.name, native.tobytes()


def samples(dtypes: frozenset[str]) -> Iterator[Any]:
    """Yield NumPy arrays of several shapes, for each dtype; values differ from one another."""
    for name in sorted(dtypes):
        dtype = dtype_of(name)
        for shape in ((), (1,), (0,), (3, 0), (5,), (2, 3), (2, 1, 4)):
            count = int(np.prod(shape))
            if name == "bool":
                yield (np.arange(count) % 2 == 1).reshape(shape)
            else:
                yield np.arange(count).astype(dtype).reshape(shape)


def check_framework(framework: contracts.Framework | str, make: Make, read: Read) -> int:
    """Run every check on a registered framework; return how many tensors were converted.

    Args:
        framework: the framework, or its name.
        make: a NumPy array to a new tensor of the framework with the same values and dtype.
        read: a tensor to a NumPy array with a copy of its values.
    """
    name = framework if isinstance(framework, str) else framework.name
    target = registry.target_of(name)
    blank = contracts.TensorSpec(framework="numpy", shape=(), dtype="float32", byte_strides=())
    count = 0
    for array in samples(target.accepts(blank).dtypes):
        tensor = make(array)
        check_describes(target, tensor, array)
        check_identity(tensor, name)
        check_pair(tensor, "numpy", lambda y: np.array(y, copy=True), expected=array)
        check_pair(array, name, read, expected=array)
        aligned = empty(array.shape, array.dtype)
        aligned[...] = array
        check_pair(aligned, name, read, expected=array)
        check_pair(aligned[..., ::-1] if array.ndim else aligned, name, read)
        count += 4
    return count


def check_describes(framework: contracts.Framework, tensor: Any, array: Any) -> None:
    """The spec agrees with the array that the tensor was made from."""
    spec = framework.describe(tensor)
    assert spec.framework == framework.name, spec
    assert (spec.shape, spec.dtype) == (array.shape, array.dtype.name), spec
    assert spec.nbytes == array.nbytes, spec
    assert spec.handle is not None, f"{framework.name}.describe gives no handle"
    assert registry.owner_of(tensor) is framework, f"{type(tensor)} is owned by another framework"


def check_identity(tensor: Any, name: str) -> None:
    """A tensor of the target already comes back as itself."""
    assert convert(tensor, name) is tensor
    assert explain(tensor, name).identity


def check_pair(x: Any, to: str, read: Read, *, expected: Any = None) -> None:
    """Convert `x`, and check values, sharing, leases and lifetime against what `explain` said.

    `expected` is a NumPy array with the right values; None: as `x` is when NumPy reads it.
    """
    expected = np.asarray(x) if expected is None else expected
    right = bits_of(expected)
    plan = explain(x, to)
    before = len(leases())
    result = convert(x, to)
    assert bits_of(read(result)) == right, f"wrong values: {plan}"
    if expected.nbytes:
        assert shares_memory(x, result) == plan.zero_copy, f"explain was wrong: {plan}"
    moved = 0 if plan.zero_copy else expected.nbytes
    assert plan.bytes_moved == moved, f"{plan.bytes_moved} bytes explained, {moved} moved: {plan}"
    leased = len(leases()) - before
    assert leased == (plan.zero_copy and not plan.identity), f"{leased} leases: {plan}"
    again = convert(x, to)  # now perhaps by a cached plan
    assert bits_of(read(again)) == right, f"wrong values when warm: {plan}"
    if expected.nbytes:
        assert shares_memory(x, again) == plan.zero_copy, f"warm is not as cold: {plan}"
    _check_copies(x, to, read, expected, plan)
    del result, again
    if len(leases()) != before:
        gc.collect()
    assert len(leases()) == before, f"a lease outlives its borrower: {plan}"


def _check_copies(x: Any, to: str, read: Read, expected: Any, plan: contracts.Plan) -> None:
    """`copy=False` shares or raises, `copy=True` owns its memory."""
    refused: CopyRequiredError | None = None
    try:
        shared = convert(x, to, copy=False)
    except CopyRequiredError as error:
        assert not plan.zero_copy, f"copy=False was refused: {plan}"
        refused = error
    else:
        assert plan.zero_copy, f"copy=False copied: {plan}"
        assert bits_of(read(shared)) == bits_of(expected)
    assert refused is None or refused.reasons, "a refusal without a reason"
    if expected.dtype == bool:  # what other bytes a bool may have, a copy has 0 and 1
        expected = expected.view("u1") != 0
    copied = convert(x, to, copy=True)
    assert bits_of(read(copied)) == bits_of(expected), "copy=True gives wrong values"
    assert not expected.nbytes or not shares_memory(x, copied), "copy=True shares"
