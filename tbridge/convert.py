"""The public verbs. Reads as the data flows: whose is it, what is it, what to do, do it."""

from __future__ import annotations

import functools
import math
import operator
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from tbridge import _core, devices, execute, ledger, options, planner, registry
from tbridge.contracts import Accepts, Framework, Lease, Plan, Request, TensorSpec
from tbridge.dtypes import DTYPES, name_of
from tbridge.errors import AllocationError, DeviceError, OptionError, UnsupportedDTypeError
from tbridge.frameworks.numpy import aligned_array

if TYPE_CHECKING:
    import numpy.typing as npt
    import tensorflow as tf
    import torch

__all__ = [
    "convert",
    "empty",
    "explain",
    "inspect",
    "leases",
    "owner",
    "shares_memory",
    "to_numpy",
    "to_tf",
    "to_torch",
]

_F = TypeVar("_F", bound=Callable[..., Any])
_NEUTRAL = Request()
MOST_ALIGNMENT = 1 << 30


def _warm(target: str | None = None) -> Callable[[_F], _F]:
    """Serve plain calls natively once their plan is known; the function serves all others."""

    def wrap(function: _F) -> _F:
        served = _core.warm(function, -1 if target is None else _core.framework(target))
        functools.update_wrapper(served, function)
        return served

    return wrap


@overload
def convert(
    x: Any,
    to: Literal["numpy", "np"],
    *,
    dtype: Any = ...,
    device: Any = ...,
    copy: bool | None = ...,
    writable: bool | None = ...,
    detach: bool = ...,
    stream: Any = ...,
    out: npt.NDArray[Any] | None = ...,
) -> npt.NDArray[Any]: ...
@overload
def convert(
    x: Any,
    to: Literal["torch", "pt", "pytorch"],
    *,
    dtype: Any = ...,
    device: Any = ...,
    copy: bool | None = ...,
    writable: bool | None = ...,
    detach: bool = ...,
    stream: Any = ...,
    out: torch.Tensor | None = ...,
) -> torch.Tensor: ...
@overload
def convert(
    x: Any,
    to: Literal["tensorflow", "tf"],
    *,
    dtype: Any = ...,
    device: Any = ...,
    copy: bool | None = ...,
    writable: bool | None = ...,
    detach: bool = ...,
    stream: Any = ...,
    out: None = ...,
) -> tf.Tensor: ...
@overload
def convert(
    x: Any,
    to: Any,
    *,
    dtype: Any = ...,
    device: Any = ...,
    copy: bool | None = ...,
    writable: bool | None = ...,
    detach: bool = ...,
    stream: Any = ...,
    out: Any = ...,
) -> Any: ...


@_warm()
def convert(
    x: Any,
    to: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    copy: bool | None = None,
    writable: bool | None = None,
    detach: bool = False,
    stream: Any = None,
    out: Any = None,
) -> Any:
    """Return the same values as a tensor of another framework, sharing memory where that is safe.

    Args:
        x: a tensor of any framework, a NumPy scalar, a variable, a DLPack capsule, or any object
            with `__dlpack__`.
        to: the target: a name (`"numpy"`, `"torch"`, `"tf"`, and aliases), the framework's module,
            or a tensor to be like (its framework and device; not its dtype).
        dtype: convert to this dtype: a neutral name such as `"float32"`, or any framework's dtype.
            None keeps dtype and bits.
        device: where the result must be; None: where `x` is.
        copy: None shares where it is safe and else copies; False shares or raises; True copies,
            so that the result owns its memory.
        writable: True: the result may be written without touching anything immutable or read-only.
            False: you promise not to write; a NumPy result enforces it.
        detach: leave the gradient behind.
        stream: for device memory; None is each framework's current stream. Host memory has none.
        out: write into this tensor of the target, of the same shape and dtype, and return it.

    Returns:
        A tensor of the target. `x` itself where it is of the target already and no option asks for
        more. Where memory is shared, the owner's memory lives until the last borrower lets go, and
        later in-place writes on one side show on the other. A copy owns its memory.

    Raises:
        UnknownFrameworkError, FrameworkMissingError: for the target.
        UnsupportedTypeError, UnsupportedDTypeError, SymbolicTensorError: `x` cannot be converted.
        CopyRequiredError: `copy=False`, and it is not safe to share.
        GradientError: a gradient would be lost; pass `detach=True`.
        DeviceError, ProducerError, OptionError: see `tbridge.errors`.

    >>> import numpy as np, tbridge
    >>> x = tbridge.empty((2, 3), "float32")
    >>> x[:] = 1
    >>> y = tbridge.convert(x, to="torch")
    >>> y[0, 0] = 7.0
    >>> float(x[0, 0])
    7.0
    """
    source, target, spec, request, accepts = _look(
        x, to, dtype, device, copy, writable, detach, stream, out
    )
    plan = planner.plan(spec, request, accepts, target.name)
    result = execute.run(plan, x, spec, source, target, accepts, out)
    if plan.zero_copy and request == _NEUTRAL:
        _core.remember(
            x,
            to,
            registry.number_of(target),
            plan.identity,
            plan.writable,
            plan.immutable,
            plan.read_only,
            not plan.read_only_result,
        )
    return result


def explain(
    x: Any,
    to: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    copy: bool | None = None,
    writable: bool | None = None,
    detach: bool = False,
    stream: Any = None,
    out: Any = None,
) -> Plan:
    """Return the plan that `convert` would run with these arguments. Moves no data.

    Raises the same errors as `convert` where there is no plan.

    >>> import numpy as np, tbridge
    >>> print(tbridge.explain(np.zeros((3, 4), ">f4"), to="torch"))
    numpy -> torch  float32 (3, 4): copied, 48 bytes written
      normalise  its byte order is foreign, and torch takes this machine's alone
    """
    _, target, spec, request, accepts = _look(
        x, to, dtype, device, copy, writable, detach, stream, out
    )
    return planner.plan(spec, request, accepts, target.name)


def _look(
    x: Any,
    to: Any,
    dtype: Any,
    device: Any,
    copy: bool | None,
    writable: bool | None,
    detach: bool,
    stream: Any,
    out: Any,
) -> tuple[Framework, Framework, TensorSpec, Request, Accepts]:
    """Find out all that a plan is made of."""
    target = registry.target_of(to)
    source = registry.owner_of(x)
    request = _request(dtype, device, copy, writable, detach, out)
    spec = source.describe(x)
    if device is None and not isinstance(to, (str, types.ModuleType)):
        request = replace(request, device=_device_of(to))
    if stream is not None and spec.device.is_host:
        raise OptionError(
            "stream= is for device memory, and this tensor is in host memory", option="stream"
        )
    # what the target takes depends on the dtype that it gets
    accepts = target.accepts(replace(spec, dtype=request.dtype or spec.dtype))
    if spec.dtype == "bool" and not accepts.dirty_bools and spec.device.is_host and spec.handle:
        # the one fact that costs a look at the data, so only where the target would misread it
        spec = replace(spec, dirty_bools=not _core.clean_bools(spec.handle))
    return source, target, spec, request, accepts


def _device_of(example: Any) -> devices.Device:
    """Return where a tensor is that the result shall be like; whatever its dtype."""
    try:
        return registry.owner_of(example).describe(example).device
    except UnsupportedDTypeError:
        return devices.CPU  # strings and the like are in host memory


def _request(dtype: Any, device: Any, copy: Any, writable: Any, detach: Any, out: Any) -> Request:
    for option, value in (("copy", copy), ("writable", writable)):
        if not (value is None or isinstance(value, bool)):
            raise OptionError(f"{option}={value!r} is not True, False or None", option=option)
    if not isinstance(detach, bool):
        raise OptionError(f"detach={detach!r} is not True or False", option="detach")
    name = None
    if dtype is not None:
        name = name_of(dtype)
        if name not in DTYPES:
            raise UnsupportedDTypeError(
                f"dtype={dtype!r} is none of {', '.join(DTYPES)}", dtype=name
            )
    return Request(
        dtype=name,
        device=None if device is None else devices.parse(device),
        copy=copy,
        writable=writable,
        detach=detach,
        out=out is not None,
        settings=options.current(),
    )


@_warm("numpy")
def to_numpy(x: Any, **options: Any) -> npt.NDArray[Any]:
    """Return `convert(x, to="numpy", **options)`.

    >>> import torch, tbridge
    >>> tbridge.to_numpy(torch.arange(3))
    array([0, 1, 2])
    """
    result: npt.NDArray[Any] = convert(x, "numpy", **options)
    return result


@_warm("torch")
def to_torch(x: Any, **options: Any) -> torch.Tensor:
    """Return `convert(x, to="torch", **options)`.

    >>> import numpy as np, tbridge
    >>> tbridge.to_torch(np.arange(3))
    tensor([0, 1, 2])
    """
    return convert(x, "torch", **options)


@_warm("tensorflow")
def to_tf(x: Any, **options: Any) -> tf.Tensor:
    """Return `convert(x, to="tensorflow", **options)`.

    >>> import numpy as np, tbridge
    >>> tbridge.to_tf(np.arange(3)).shape
    TensorShape([3])
    """
    return convert(x, "tensorflow", **options)


def inspect(x: Any) -> TensorSpec:
    """Return what `x` is: shape, dtype, device, byte strides, pointer, and the facts that decide.

    >>> import numpy as np, tbridge
    >>> spec = tbridge.inspect(np.zeros((2, 3), "float32"))
    >>> spec.dtype, spec.byte_strides, spec.contiguous, spec.nbytes
    ('float32', (12, 4), True, 24)
    """
    return registry.owner_of(x).describe(x).without_handle()


def owner(x: Any) -> Any:
    """Return the first owner of `x`'s memory along the chain of leases; without one, `x` itself.

    None when the owner is gone and only its memory is left, kept alive by the borrowers.

    >>> import tbridge
    >>> a = tbridge.empty((4,), "float32")
    >>> tbridge.owner(tbridge.convert(a, to="torch")[1:]) is a
    True
    """
    # each lease of a chain keeps the one before it alive, so the oldest is the first
    chain = ledger.covering(registry.owner_of(x).describe(x))
    return chain[0].owner if chain else x


def shares_memory(a: Any, b: Any) -> bool:
    """Say whether some byte belongs to an element of both: exact, as `np.shares_memory`.

    >>> import numpy as np, tbridge
    >>> x = np.zeros(10)
    >>> tbridge.shares_memory(x[::2], x[1::2]), tbridge.shares_memory(x[::2], x[2:])
    (False, True)
    """
    first, second = (registry.owner_of(x).describe(x) for x in (a, b))
    return ledger.overlap(first, second)


def leases(x: Any = None) -> list[Lease]:
    """Return the live leases, oldest first: all, or those whose bytes overlap `x`'s.

    >>> import tbridge
    >>> a = tbridge.empty((4,), "float32")
    >>> y = tbridge.convert(a, to="torch")
    >>> [(lease.source, lease.target, lease.nbytes) for lease in tbridge.leases(a)]
    [('numpy', 'torch', 16)]
    """
    if x is None:
        return [Lease(entry) for entry in _core.leases()]
    return ledger.covering(registry.owner_of(x).describe(x))


def empty(
    shape: int | tuple[int, ...],
    dtype: Any = "float32",
    *,
    framework: str = "numpy",
    device: Any = None,
    align: int = 64,
) -> Any:
    """Return an uninitialised tensor in memory that every other framework can share at once.

    The result owns its memory, which starts on a multiple of `align` bytes, a power of two.

    Raises:
        OptionError: a shape or alignment that cannot be, or a framework whose tensors cannot be
            filled afterwards.
        DeviceError: `device` is not the CPU.

    >>> import tbridge
    >>> tbridge.empty((2, 3), "int16").shape
    (2, 3)
    """
    target = registry.target_of(framework)
    lengths = _lengths(shape)
    if not isinstance(align, int) or not 0 < align <= MOST_ALIGNMENT or align & (align - 1):
        raise OptionError(
            f"align={align!r} is no power of two up to {MOST_ALIGNMENT}", option="align"
        )
    name = _request(dtype, device, None, None, False, None).dtype
    if name is None:
        raise OptionError("dtype=None says nothing; name one", option="dtype")
    place = devices.parse(device or "cpu")
    if place != devices.CPU:
        raise DeviceError(f"device={device!r}: tbridge allocates host memory alone")
    blank = TensorSpec(
        framework=target.name, shape=lengths, dtype=name, byte_strides=(0,) * len(lengths)
    )
    accepts = target.accepts(blank)
    if accepts.immutable:
        raise OptionError(
            f"{target.name} tensors cannot be filled once they are made; make a NumPy array, "
            "fill it, and convert it: it will be shared",
            option="framework",
        )
    if name not in accepts.dtypes:
        raise UnsupportedDTypeError(f"{target.name} has no {name}", dtype=name)
    try:
        if max((*lengths, math.prod(lengths) * DTYPES[name].itemsize)) > sys.maxsize:
            raise MemoryError("more than can be addressed")
        made = target.allocate(lengths, name) if align <= 64 else None
        if made is not None:
            return made[0]
        array = aligned_array(lengths, name, max(align, 64))
    except (MemoryError, RuntimeError) as error:  # torch raises the latter
        raise AllocationError(f"there is no memory for shape={shape!r} of {name}") from error
    return array if target is registry.owner_of(array) else convert(array, target.name)


def _lengths(shape: Any) -> tuple[int, ...]:
    """Return the lengths of the axes, whatever integers they are given as."""
    given = shape if isinstance(shape, (tuple, list)) else (shape,)
    try:
        lengths = tuple(operator.index(length) for length in given)
    except TypeError:
        lengths = (-1,)
    if any(length < 0 or isinstance(n, bool) for n, length in zip(given, lengths, strict=False)):
        raise OptionError(f"shape={shape!r} is not a tuple of lengths", option="shape")
    return lengths
