"""The words that the stages share: what a tensor is, what is asked, what is planned, who lends.

A framework is one `Framework` subclass; the planner reads the `Accepts` that it declares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

from tbridge import _core, layout
from tbridge.devices import CPU, Device
from tbridge.dtypes import DTYPES, from_dlpack, name_of
from tbridge.errors import ProducerError, UnsupportedDTypeError

__all__ = [
    "Accepts",
    "Framework",
    "Handles",
    "Lease",
    "Loan",
    "Plan",
    "Request",
    "Settings",
    "Step",
    "TensorSpec",
    "require_dtype",
]

StepKind = Literal["resolve", "cast", "compact", "align", "normalise", "transfer", "alias", "copy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """What a tensor is, in no framework's words. `inspect` returns one.

    `shape` in elements; `byte_strides`, `itemsize` and `nbytes` in bytes; `ptr` is the address of
    the first element.
    """

    framework: str
    shape: tuple[int, ...]
    dtype: str
    device: Device = CPU
    byte_strides: tuple[int, ...]
    ptr: int = 0
    writable: bool = True
    immutable: bool = False  # by the framework's convention, whatever a pointer could do
    requires_grad: bool = False
    swapped: bool = False  # not this machine's byte order
    lazy: tuple[str, ...] = ()  # operations that the values still wait for: conj, neg, zero
    dirty_bools: bool = False  # bytes other than 0 and 1; only looked at where a target minds
    interned: bool = False  # the framework may hand these very bytes out again
    by_value: str = ""  # why a copy is taken whatever the target: a variable, a scalar
    handle: _core.Handle | None = field(default=None, repr=False, compare=False)

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return DTYPES[self.dtype].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, as if they lay next to each other."""
        return prod(self.shape) * self.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie next to each other in row-major order."""
        return layout.is_c_contiguous(self.shape, self.byte_strides, self.itemsize)

    @property
    def aligned(self) -> bool:
        """Whether the first element's address is a multiple of 64."""
        return self.is_aligned_to(64)

    def is_aligned_to(self, alignment: int) -> bool:
        """Say whether the first element's address is a multiple of `alignment` bytes."""
        return 0 in self.shape or self.ptr % alignment == 0

    @property
    def items_aligned(self) -> bool:
        """Whether every element lies at an address that its type may have."""
        alignment = DTYPES[self.dtype].alignment
        return layout.is_aligned(self.ptr, self.shape, self.byte_strides, alignment)

    @property
    def negative_strides(self) -> bool:
        """Whether some axis is stepped along backwards."""
        return any(step < 0 for _, step in layout.stepped(self.shape, self.byte_strides))

    @property
    def odd_strides(self) -> bool:
        """Whether some stride is no multiple of the element's size."""
        return any(
            step % self.itemsize for _, step in layout.stepped(self.shape, self.byte_strides)
        )

    @property
    def overlapping(self) -> bool:
        """Whether one write may change several elements."""
        return layout.may_overlap(self.shape, self.byte_strides, self.itemsize)

    @property
    def extent(self) -> tuple[int, int]:
        """The addresses reached, [low, high)."""
        low, high = layout.extent(self.shape, self.byte_strides, self.itemsize)
        return self.ptr + low, self.ptr + high

    @classmethod
    def of_handle(cls, handle: _core.Handle, framework: str, **facts: Any) -> TensorSpec:
        """Describe what a handle holds; `facts` are the fields that a handle does not know.

        Raises:
            UnsupportedDTypeError: a DLPack type that tbridge does not carry.
        """
        code, bits, lanes = handle.dltype
        dtype = facts.pop("dtype", None) or (from_dlpack(code, bits) if lanes == 1 else None)
        if dtype is None:
            raise UnsupportedDTypeError(
                f"this {framework} tensor has DLPack type code {code} with {bits} bits and "
                f"{lanes} lanes, which tbridge does not carry; convert it to one of "
                f"{', '.join(DTYPES)} first",
                dtype=f"DLPack {code}/{bits}/{lanes}",
            )
        return cls(
            framework=framework,
            shape=handle.shape,
            dtype=dtype,
            device=Device.from_dlpack(*handle.device),
            byte_strides=handle.byte_strides,
            ptr=handle.ptr,
            writable=facts.pop("writable", not handle.read_only),
            handle=handle,
            **facts,
        )

    def without_handle(self) -> TensorSpec:
        """Return the same description, keeping no memory alive."""
        return replace(self, handle=None)


@dataclass(frozen=True, slots=True)
class Settings:
    """What `tbridge.options` sets: what happens where sharing could surprise."""

    immutable: Literal["share", "copy", "error"] = "share"
    mutable: Literal["share", "copy", "error"] = "share"
    readonly: Literal["copy", "share", "error"] = "copy"
    gradients: Literal["error", "detach"] = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a caller asks for, beside the tensor and the target."""

    dtype: str | None = None
    device: Device | None = None
    copy: bool | None = None
    writable: bool | None = None
    detach: bool = False
    out: bool = False  # the values go into a tensor that the caller gave
    settings: Settings = Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepts:
    """What a framework takes of a tensor such as the one described: its declared abilities.

    A field says what is allowed, so the defaults are those of the least demanding framework.
    """

    dtypes: frozenset[str]  # that the framework has
    devices: frozenset[str] = frozenset({"cpu"})  # kinds whose memory it can hold
    shares: bool = True  # whether it can hold foreign memory of this dtype at all
    strided: bool = True  # else: row-major without gaps
    negative_strides: bool = True
    odd_strides: bool = True
    misaligned_items: bool = True
    alignment: int = 1  # of the first element, in bytes
    swapped: bool = True
    dirty_bools: bool = True
    keeps_read_only: bool = True  # a tensor of it can refuse to be written
    immutable: bool = False  # its tensors are never written, by convention
    because: str = ""  # why it does not share, where it does not


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan: what is done, why, and how many bytes it writes."""

    kind: StepKind
    reason: str
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a conversion is done, step by step. `explain` returns it, `convert` runs it.

    `zero_copy`: the result uses the source's memory. Then `writable`, `immutable` and `read_only`
    are what the lease will say: the borrower may write, the owner is immutable by convention, the
    memory was declared read-only. `read_only_result`: the result itself refuses to be written.
    """

    source: str
    target: str
    shape: tuple[int, ...]
    dtype: str
    steps: tuple[Step, ...]
    zero_copy: bool
    writable: bool = True
    immutable: bool = False
    read_only: bool = False
    read_only_result: bool = False

    @property
    def identity(self) -> bool:
        """Whether the very same object comes back."""
        return not self.steps

    @property
    def bytes_moved(self) -> int:
        """Bytes written into new memory: steps that move bytes run as one pass."""
        return max((step.nbytes for step in self.steps), default=0)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the plan is what it is, a sentence a step."""
        return tuple(step.reason for step in self.steps)

    def __str__(self) -> str:
        size = f"{self.bytes_moved:,} bytes written" if self.bytes_moved else "no bytes written"
        verdict = "the same object" if self.identity else "shared" if self.zero_copy else "copied"
        head = f"{self.source} -> {self.target}  {self.dtype} {self.shape}: {verdict}, {size}"
        width = max((len(step.kind) for step in self.steps), default=0)
        rows = [f"  {step.kind:<{width}}  {step.reason}" for step in self.steps]
        return "\n".join([head, *rows])


class Lease:
    """One loan of memory: who lends, who borrows, which bytes, and whether it still lasts.

    It ends when the borrower's storage is freed: views of the borrower keep it.
    """

    __slots__ = ("_entry",)

    def __init__(self, entry: _core.Lease) -> None:
        self._entry = entry

    @property
    def source(self) -> str:
        """The lending framework."""
        return self._entry.source

    @property
    def target(self) -> str:
        """The borrowing framework."""
        return self._entry.target

    @property
    def owner(self) -> Any:
        """The object that lends, or None when only its memory is left."""
        return self._entry.owner

    @property
    def ptr(self) -> int:
        """The lowest address lent."""
        return self._entry.ptr

    @property
    def nbytes(self) -> int:
        """Bytes from the lowest address to the end of the highest element."""
        return self._entry.nbytes

    @property
    def device(self) -> Device:
        """Where the memory is."""
        return Device.from_dlpack(*self._entry.device)

    @property
    def writable(self) -> bool:
        """Whether the borrower may write."""
        return self._entry.writable

    @property
    def immutable(self) -> bool:
        """Whether the owner is immutable by convention, so that a write would surprise it."""
        return self._entry.immutable

    @property
    def alive(self) -> bool:
        """Whether somebody still borrows."""
        return self._entry.alive

    def __repr__(self) -> str:
        state = "alive" if self.alive else "ended"
        return (
            f"<Lease {self.source} -> {self.target}, {self.nbytes:,} bytes at {self.ptr:#x} "
            f"on {self.device}, {state}>"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """Memory on its way to a borrower, in whichever form that takes.

    `terms` None means that there is no lease: the memory is the result's own.
    """

    handle: _core.Handle
    dtype: str
    writable: bool
    terms: tuple[int, int, object, bool, bool, bool] | None = None

    def give(
        self,
        importer: Callable[[object], Any],
        *,
        versioned: bool = False,
        as_dtype: str | None = None,
    ) -> Any:
        """Return what `importer` makes of a DLPack capsule; `as_dtype`: a type of the same width.

        The versioned form says so where the memory is read-only. The legacy form cannot.
        """
        capsule = _core.capsule(self._coded(as_dtype), versioned, self.terms)
        try:
            return importer(capsule)
        finally:
            _core.passed(capsule)

    def exchange(self, tensor_type: type, *, as_dtype: str | None = None) -> Any:
        """Return a tensor of a type that offers DLPack's C exchange API."""
        return _core.exchange(self._coded(as_dtype), tensor_type, self.terms)

    def array(self, dtype: Any) -> Any:
        """Return a NumPy array of this NumPy dtype."""
        return _core.array(self.handle, dtype, self.writable, self.terms)

    def _coded(self, as_dtype: str | None) -> _core.Handle:
        wanted = DTYPES[as_dtype or self.dtype]
        if self.handle.dltype[:2] == (wanted.code, wanted.bits):
            return self.handle
        return _core.recode(self.handle, wanted.code, wanted.bits)


class Framework:
    """What tbridge needs to know of one framework. Each has a file, and a subclass of this in it.

    Only `describe`, and for a target `accepts` and `adopt`, must be written.
    """

    name: str
    aliases: tuple[str, ...] = ()
    module: str  # whose presence in sys.modules tells that a tensor of it can exist
    install: str = ""  # the command that installs it
    is_target: bool = True

    def owns(self, obj: object) -> bool:
        """Say whether `obj` is of a type of this framework. Depends on `type(obj)` alone."""
        raise NotImplementedError

    def describe(self, obj: Any) -> TensorSpec:
        """Return what `obj` is, with a handle on its memory.

        Raises:
            SymbolicTensorError: there is no memory behind it.
            UnsupportedTypeError: it is no dense tensor.
            UnsupportedDTypeError: tbridge does not carry its dtype.
        """
        raise NotImplementedError

    def accepts(self, spec: TensorSpec) -> Accepts:
        """Return what this framework takes, of a tensor such as `spec`."""
        raise NotImplementedError

    def owner(self, obj: Any) -> Any:
        """Return the object that owns `obj`'s memory, for the lease to name."""
        return obj

    def export(self, obj: Any, spec: TensorSpec) -> _core.Handle:
        """Return a handle that keeps the memory alive, whatever is done to `obj` afterwards."""
        assert spec.handle is not None
        return spec.handle

    def adopt(self, loan: Loan) -> Any:
        """Return a tensor of this framework over the loan's memory."""
        raise NotImplementedError

    def allocate(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, _core.Handle] | None:
        """Return an uninitialised tensor in host memory and a handle on it.

        None: there is no allocator to use, so memory of tbridge's own is adopted.
        """
        return None

    def construct(self, array: Any) -> Any:
        """Return a tensor that copies a NumPy array, for dtypes that cannot be shared."""
        raise NotImplementedError

    def value(self, obj: Any) -> Any:
        """Return the tensor that a variable holds now."""
        return obj

    def detach(self, obj: Any) -> Any:
        """Return the same tensor outside the gradient tape."""
        return obj

    def read_only(self, obj: Any) -> Any:
        """Return the same tensor, refusing to be written."""
        return obj

    def resolve(self, obj: Any, spec: TensorSpec, destination: Any) -> None:
        """Write the values of a lazy tensor into a NumPy array of the same shape, in one pass."""
        raise NotImplementedError

    def written(self, obj: Any) -> None:
        """Tell the framework that tbridge wrote into `obj`, as `out=` asks."""

    def doors(self, number: int) -> None:
        """Tell the core how to look at this framework's tensors and how to hand it memory.

        Optional: it makes plain calls fast. `number` is the framework's number in the core.
        """

    @property
    def imported(self) -> bool:
        """Whether the process has imported it."""
        return self.module in sys.modules

    def __repr__(self) -> str:
        return f"<Framework {self.name}>"


class Handles:
    """How a framework's file makes a handle: from a DLPack capsule, or from an address."""

    @staticmethod
    def read(capsule: object) -> _core.Handle:
        """Return a handle on what a DLPack capsule holds, and take the capsule over.

        Raises:
            ValueError: the capsule was used, or does not tell the truth.
        """
        return _core.read(capsule, True)

    @staticmethod
    def view(
        ptr: int,
        shape: tuple[int, ...],
        byte_strides: tuple[int, ...],
        dtype: str,
        *,
        device: Device = CPU,
        read_only: bool = False,
        keep: object,
    ) -> _core.Handle:
        """Return a handle on memory at an address; `keep` is held, and keeps it alive.

        Raises:
            ProducerError: no memory can have this shape and these strides.
        """
        known = DTYPES[dtype]
        try:
            return _core.view(
                ptr, shape, byte_strides, known.code, known.bits, *device.dlpack, read_only, keep
            )
        except ValueError as error:
            raise ProducerError(f"a tensor of shape {shape} cannot be used: {error}") from error

    @staticmethod
    def of_array(array: Any, dtype: str) -> _core.Handle:
        """Return a handle on a NumPy array's memory, which it keeps alive.

        Raises:
            ProducerError: no memory can have this shape and these strides.
        """
        known = DTYPES[dtype]
        try:
            return _core.from_array(array, known.code, known.bits)
        except ValueError as error:
            raise ProducerError(
                f"an array of shape {array.shape} cannot be used: {error}"
            ) from error


def require_dtype(dtype: object, framework: str, remedy: str) -> str:
    """Return the neutral name of a framework's dtype, or say that tbridge does not carry it."""
    name = name_of(dtype)
    if name not in DTYPES:
        raise UnsupportedDTypeError(
            f"this {framework} tensor has dtype {name}, which tbridge does not carry; {remedy}",
            dtype=name,
        )
    return name
