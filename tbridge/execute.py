"""Run a plan: the only module that moves tensors.

A plan that shares hands memory over under a lease. A plan that copies writes once, straight into
the final memory: byte order, layout, alignment and dtype change in that one pass.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from tbridge import _core, ledger
from tbridge.contracts import Accepts, Framework, Loan, Plan, TensorSpec
from tbridge.dtypes import DTYPES
from tbridge.errors import AllocationError, BrokenPromiseError, OptionError
from tbridge.frameworks.numpy import aligned_array, dtype_of

__all__ = ["run"]

# below this a second thread costs more than it saves
PARALLEL_NBYTES = 1 << 25
STRIPS_NBYTES = 1 << 20  # below this everything is in the cache anyway
STRIP_NBYTES = 256  # a few cache lines of the destination
MOST_THREADS = 8  # memory is saturated long before that


def run(
    plan: Plan,
    x: Any,
    spec: TensorSpec,
    source: Framework,
    target: Framework,
    accepts: Accepts,
    out: Any = None,
) -> Any:
    """Return the converted tensor; `BrokenPromiseError` if what was promised did not happen."""
    if out is not None:
        return _write_out(plan, x, spec, source, target, out)
    if plan.identity:
        return x
    if not plan.zero_copy:
        return _copy(plan, x, spec, source, target, accepts)
    if source is target and not plan.read_only_result:
        return _share_within(plan, x, spec, source)
    return _share(plan, x, spec, source, target)


# ---- sharing -------------------------------------------------------------------------------


def _share_within(plan: Plan, x: Any, spec: TensorSpec, framework: Framework) -> Any:
    if spec.requires_grad:
        x = framework.detach(x)
    return framework.value(x) if spec.by_value else x


def _share(plan: Plan, x: Any, spec: TensorSpec, source: Framework, target: Framework) -> Any:
    terms = (
        _core.framework(source.name),
        _core.framework(target.name),
        source.owner(x),
        plan.writable,
        plan.immutable,
        plan.read_only,
    )
    loan = Loan(
        handle=source.export(x, spec),
        dtype=plan.dtype,
        writable=not plan.read_only_result,
        terms=terms,
    )
    result = target.adopt(loan)
    arrived = target.describe(result)
    if spec.nbytes and (arrived.ptr, arrived.shape) != (spec.ptr, spec.shape):
        raise BrokenPromiseError(
            f"{target.name} promised to share {source.name} memory of {spec.dtype} {spec.shape} "
            f"at {spec.ptr:#x}, and the result is {arrived.shape} at {arrived.ptr:#x}; "
            "please report this"
        )
    return result


# ---- copying -------------------------------------------------------------------------------


def _copy(
    plan: Plan,
    x: Any,
    spec: TensorSpec,
    source: Framework,
    target: Framework,
    accepts: Accepts,
) -> Any:
    made = _allocate(plan, target)
    if made is not None:
        result, handle = made
        _core.prefer_huge_pages(handle)
        _fill(_writable_array(handle, plan.dtype), x, spec, source)
        return target.read_only(result) if plan.read_only_result else result
    if not accepts.shares and plan.dtype == spec.dtype and not spec.lazy:
        return target.construct(_values(spec, source, x))  # the target's own way is the one pass
    # no allocator to use: fill memory of our own, which the target then adopts
    try:
        array = aligned_array(plan.shape, plan.dtype, max(64, accepts.alignment))
    except MemoryError as error:
        raise _too_large(plan) from error
    _fill(array, x, spec, source)
    if not accepts.shares:
        return target.construct(array)
    handle = _core.from_array(array, *_code(plan.dtype))
    return target.adopt(Loan(handle=handle, dtype=plan.dtype, writable=True))


def _allocate(plan: Plan, target: Framework) -> tuple[Any, _core.Handle] | None:
    """Return the target's own memory for the result, if it has an allocator."""
    try:
        return target.allocate(plan.shape, plan.dtype)
    except (MemoryError, RuntimeError) as error:  # torch raises the latter
        raise _too_large(plan) from error


def _too_large(plan: Plan) -> AllocationError:
    return AllocationError(
        f"a copy to {plan.target} needs {plan.bytes_moved:,} bytes, which there are not; "
        "if the source is a broadcast view, convert what it was made of"
    )


def _write_out(
    plan: Plan, x: Any, spec: TensorSpec, source: Framework, target: Framework, out: Any
) -> Any:
    if not target.owns(out):
        raise OptionError(
            f"out= is a {type(out).__module__}.{type(out).__qualname__}, "
            f"and the target is {target.name}",
            option="out",
        )
    place = target.describe(out)
    problem = None
    if place.immutable or not place.writable:
        problem = f"it is {'immutable' if place.immutable else 'read-only'}"
    elif place.by_value or place.lazy or place.overlapping:
        problem = "its elements have no memory each of their own"
    elif place.requires_grad:
        problem = "it needs a gradient, which a write would corrupt; pass out.detach()"
    elif place.shape != plan.shape:
        problem = f"its shape is {place.shape}, and {plan.shape} is needed"
    elif place.dtype != plan.dtype:
        problem = (
            f"its dtype is {place.dtype}, and {plan.dtype} is needed; "
            f"pass dtype={place.dtype!r} to cast"
        )
    elif ledger.overlap(spec, place):
        problem = "it shares memory with the source, which would change while it is read"
    if problem is not None:
        raise OptionError(f"out= cannot take the result: {problem}", option="out")
    assert place.handle is not None
    _fill(_writable_array(place.handle, place.dtype, swapped=place.swapped), x, spec, source)
    target.written(out)
    return out


def _fill(destination: np.ndarray[Any, Any], x: Any, spec: TensorSpec, source: Framework) -> None:
    """Write the values of `x` into host memory, in one pass."""
    if spec.lazy:
        plain = destination.dtype == dtype_of(spec.dtype) and destination.flags.c_contiguous
        if plain and destination.flags.aligned and destination.ctypes.data % 64 == 0:
            source.resolve(x, spec, destination)
            return
        # what the framework itself writes must lie as it likes it; the rest is an ordinary copy
        values: np.ndarray[Any, Any] = aligned_array(spec.shape, spec.dtype)
        source.resolve(x, spec, values)
    else:
        values = _values(spec, source, x)
    if spec.dtype == "bool":
        # a bool is whether its byte is not 0, whatever else the byte is
        _in_parallel(_write_truth, destination, values.view("u1"))
    elif destination.dtype == values.dtype.newbyteorder("="):
        # the same bits: NumPy moves integers faster than the types that it does not know
        _in_parallel(_write_values, _as_bits(destination), _as_bits(values))
    else:
        _in_parallel(_write_values, destination, values)


def _values(spec: TensorSpec, source: Framework, x: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array over the source's memory, to copy from."""
    handle = source.export(x, spec) if spec.handle is None else spec.handle
    return _core.array(handle, _host_dtype(spec.dtype, spec.swapped), False, None)


def _write_values(destination: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
    if not np.can_cast(values.dtype, destination.dtype, "unsafe"):
        values = values.astype("float32")  # ml_dtypes casts some of its types to float alone
    with np.errstate(all="ignore"):  # a cast that was asked for does what it does
        for part in _strips(destination, values):
            np.copyto(destination[part], values[part], casting="unsafe")


def _strips(
    destination: np.ndarray[Any, Any], values: np.ndarray[Any, Any]
) -> list[tuple[Any, ...]]:
    """Return the parts in which to copy: narrow strips where every read is of another cache line.

    A transpose reads down the columns. In strips the lines that it reads are still in the cache
    when the next row wants their next element: five times as fast at 256 MiB.
    """
    if values.ndim < 2 or values.nbytes < STRIPS_NBYTES:
        return [(...,)]
    steps = [abs(step) for step in values.strides]
    if steps[-1] < STRIP_NBYTES or steps[-1] == min(steps):
        return [(...,)]
    width = max(STRIP_NBYTES // values.itemsize, 1)
    return [(..., slice(at, at + width)) for at in range(0, destination.shape[-1], width)]


def _write_truth(destination: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
    np.not_equal(values, 0, out=destination, casting="unsafe")


def _as_bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the same elements as unsigned integers of their width; a complex number as it is."""
    if array.dtype.kind == "c" or array.dtype.itemsize > 8:
        return array
    order = array.dtype.byteorder if array.dtype.byteorder in "<>" else "="
    return array.view(np.dtype(f"{order}u{array.dtype.itemsize}"))


def _in_parallel(
    write: Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], None],
    destination: np.ndarray[Any, Any],
    values: np.ndarray[Any, Any],
) -> None:
    """Write in as many threads as there are processors, where the size makes that pay."""
    workers = min(_processors(), MOST_THREADS)
    if destination.nbytes < PARALLEL_NBYTES or workers < 2:
        write(destination, values)
        return
    # the slowest axis that gives even parts, so that each thread writes one piece of memory
    axis = next(
        (i for i, length in enumerate(destination.shape) if length >= 8 * workers),
        int(np.argmax(destination.shape)),
    )
    edges = [part * destination.shape[axis] // workers for part in range(workers + 1)]
    parts = [(slice(None),) * axis + (slice(*edge),) for edge in pairwise(edges)]
    failures: list[BaseException] = []

    def work(part: tuple[slice, ...]) -> None:
        try:
            write(destination[part], values[part])
        except BaseException as error:  # raised again in the caller's thread
            failures.append(error)

    # threads of this call alone: a pool would not survive a fork
    threads = [threading.Thread(target=work, args=(part,)) for part in parts[1:]]
    for thread in threads:
        thread.start()
    work(parts[0])
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _writable_array(
    handle: _core.Handle, dtype: str, *, swapped: bool = False
) -> np.ndarray[Any, Any]:
    return _core.array(handle, _host_dtype(dtype, swapped), True, None)


def _host_dtype(dtype: str, swapped: bool) -> np.dtype[Any]:
    plain = dtype_of(dtype)
    return plain.newbyteorder() if swapped else plain


def _code(dtype: str) -> tuple[int, int]:
    return DTYPES[dtype].code, DTYPES[dtype].bits
