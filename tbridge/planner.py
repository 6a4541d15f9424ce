"""Choose how to convert. Pure: reads a TensorSpec, touches no tensor, knows no framework.

Read `_decide` from top to bottom: what must be done to the values, then what safety adds.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from tbridge.contracts import Accepts, Plan, Request, Step, StepKind, TensorSpec
from tbridge.dtypes import DTYPES, nearest
from tbridge.errors import (
    CopyRequiredError,
    DeviceError,
    GradientError,
    OptionError,
    UnsupportedDTypeError,
)

__all__ = ["plan"]


def plan(spec: TensorSpec, request: Request, accepts: Accepts, target: str) -> Plan:
    """Return the plan for a tensor that is `spec`, to a framework that takes `accepts`.

    Raises:
        UnsupportedDTypeError: the target lacks the dtype.
        DeviceError: the target cannot hold memory of this device.
        GradientError: the target would lose a gradient.
        CopyRequiredError: `copy=False`, and it is not safe to share; or `options` forbids it.
        OptionError: options that contradict each other.
    """
    _check_device(spec, request, accepts, target)
    facts = _Facts.of(spec, accepts, target)
    decision = _decide(facts, request, accepts, target)
    nbytes = DTYPES[decision.dtype].itemsize
    for length in spec.shape:
        nbytes *= length
    made = Plan(
        source=spec.framework,
        target=target,
        shape=spec.shape,
        dtype=decision.dtype,
        steps=tuple(
            Step(kind, reason, nbytes if moves else 0) for kind, reason, moves in decision.steps
        ),
        zero_copy=decision.shared,
        writable=decision.writable,
        immutable=decision.shared and spec.immutable,
        read_only=decision.read_only,
        read_only_result=decision.read_only_result,
    )
    if request.copy is False and not decision.shared:
        _refuse_copy(made, decision)
    return made


class _Facts(NamedTuple):
    """All that a decision depends on, of a tensor: plans are cached by it."""

    framework: str
    dtype: str
    strided: bool
    negative: bool
    odd: bool
    misaligned: bool
    off_boundary: bool
    overlapping: bool
    swapped: bool
    read_only: bool
    immutable: bool
    lazy: tuple[str, ...]
    dirty_bools: bool
    interned: bool
    by_value: str
    requires_grad: bool

    @classmethod
    def of(cls, spec: TensorSpec, accepts: Accepts, target: str) -> _Facts:
        """Read from a spec what matters to this target."""
        contiguous = spec.contiguous
        return cls(
            framework=spec.framework,
            dtype=spec.dtype,
            strided=not contiguous,
            negative=not contiguous and spec.negative_strides,
            odd=not contiguous and spec.odd_strides,
            misaligned=not spec.items_aligned,
            off_boundary=not spec.is_aligned_to(accepts.alignment),
            overlapping=not contiguous and spec.overlapping,
            swapped=spec.swapped,
            read_only=not spec.writable,
            immutable=spec.immutable,
            lazy=spec.lazy,
            dirty_bools=spec.dirty_bools,
            interned=spec.interned,
            by_value=spec.by_value,
            requires_grad=spec.requires_grad,
        )


class _Decision(NamedTuple):
    dtype: str
    steps: tuple[tuple[StepKind, str, bool], ...]  # kind, reason, whether it moves bytes
    remedies: tuple[str, ...]
    shared: bool
    writable: bool
    read_only: bool
    read_only_result: bool


@functools.lru_cache(maxsize=4096)
def _decide(facts: _Facts, request: Request, accepts: Accepts, target: str) -> _Decision:
    same = facts.framework == target
    settings = request.settings
    steps: list[tuple[StepKind, str, bool]] = []
    remedies: list[str] = []

    def move(kind: StepKind, reason: str, remedy: str = "") -> None:
        steps.append((kind, reason, True))
        if remedy:
            remedies.append(remedy)

    # 1. the values: which they are, and in which type
    if request.out and request.copy is False:
        raise OptionError("out= is written into, which is a copy; drop copy=False", option="out")
    if request.out and request.writable is not None:
        raise OptionError("out= is as writable as it is; drop writable=", option="writable")
    dtype = _result_dtype(facts, request, accepts, target)
    value_of_variable = bool(facts.by_value) and same and accepts.immutable
    if value_of_variable:
        steps.append(("resolve", facts.by_value, False))
    elif facts.by_value:
        move("copy", facts.by_value, "pass the value itself")
    if facts.lazy and (not same or dtype != facts.dtype):
        waiting = " and ".join(facts.lazy)
        move("resolve", f"its lazy {waiting} bit is not applied yet", "apply it first")
    if dtype != facts.dtype:
        move("cast", f"dtype={dtype} was asked for, it is {facts.dtype}", "drop dtype=")

    # 2. the layout: what the target can hold; a tensor of its own it holds already
    if not same:
        if not accepts.shares:
            move("copy", accepts.because, "pass dtype= with a type that it shares")
        layout = (
            ("compact", facts.negative and not accepts.negative_strides, "negative strides"),
            ("compact", facts.odd and not accepts.odd_strides, "strides of broken elements"),
            ("compact", facts.strided and not accepts.strided, "gaps or another axis order"),
            ("align", facts.misaligned and not accepts.misaligned_items, "misaligned elements"),
        )
        found = [(kind, what) for kind, applies, what in layout if applies]
        for kind, what in found[:1] + [f for f in found[1:] if f[0] == "align"]:
            move(
                "align" if kind == "align" else "compact",
                f"it has {what}, which {target} does not take",
                "copy it yourself into row-major order",
            )
        if facts.off_boundary:
            move(
                "align",
                f"it does not start on a multiple of {accepts.alignment} bytes, "
                f"which {target} needs",
                "allocate it with tbridge.empty",
            )
        if facts.swapped and not accepts.swapped:
            move("normalise", f"its byte order is foreign, and {target} takes this machine's alone")
        if facts.dirty_bools and not accepts.dirty_bools:
            move(
                "normalise", f"it has bools that are neither 0 nor 1, which {target} would misread"
            )

    # 3. safety: what a borrower could do, and what was promised to the owner
    can_write = not accepts.immutable
    promised = request.writable is False and can_write and not accepts.keeps_read_only
    unwritable = can_write and not accepts.keeps_read_only and not promised and not same
    if facts.read_only and unwritable and request.copy is not True:
        if settings.readonly == "error":
            reason = f"options(readonly='error') forbids to copy read-only memory for {target}"
            raise CopyRequiredError(f"{reason}; pass copy=True", reasons=(reason,))
        if settings.readonly == "share":
            promised = True
        else:
            move(
                "copy",
                f"its memory is read-only, and {target} would hand out a writable tensor",
                "pass writable=False if you promise not to write",
            )
    if facts.overlapping and unwritable:
        move(
            "copy",
            "several of its elements share bytes, so one write would change them all",
            "pass writable=False if you promise not to write",
        )
    if facts.interned and unwritable:
        move("copy", f"{facts.framework} may hand these very bytes out again, to anybody")
    unsafe = facts.read_only or facts.immutable or facts.overlapping
    if request.writable is True and can_write and unsafe:
        move("copy", "writable=True, and its memory must not be written", "drop writable=True")
    if facts.immutable and unwritable and settings.immutable == "copy":
        move("copy", "options(immutable='copy')", "change tbridge.options")
    if accepts.immutable and not facts.immutable and settings.mutable == "copy":
        move("copy", "options(mutable='copy')", "change tbridge.options")

    # 4. what the caller asks for beside that
    if request.copy is True:
        move("copy", "copy=True")
    if request.out:
        move("copy", "out= is given, and owns its memory")

    shared = not any(moves for _, _, moves in steps)
    if facts.requires_grad and (request.detach or not same or not shared):
        if not request.detach and settings.gradients != "detach":
            raise GradientError(
                f"this {facts.framework} tensor needs a gradient, which the result in {target} "
                "would not have; pass detach=True if you mean that"
            )
        steps.insert(0, ("resolve", "detached from its gradient, as asked", False))
    if shared:
        _refuse_sharing(facts, settings, accepts, unwritable, target)
    flags_it = accepts.keeps_read_only and can_write
    read_only_result = flags_it and (
        request.writable is False
        or (shared and unsafe and not same)
        or (facts.by_value != "" and not same and request.writable is not True)
    )
    if shared and (not same or (read_only_result and not facts.read_only)):
        steps.append(
            ("alias", _why_shared(facts, accepts, target, read_only_result, promised), False)
        )
    return _Decision(
        dtype=dtype,
        steps=tuple(steps),
        remedies=tuple(dict.fromkeys(remedies)),
        shared=shared,
        writable=can_write and not read_only_result and not promised and not facts.read_only,
        read_only=shared and (facts.read_only or promised),
        read_only_result=read_only_result,
    )


def _result_dtype(facts: _Facts, request: Request, accepts: Accepts, target: str) -> str:
    dtype = request.dtype or facts.dtype
    if dtype not in accepts.dtypes:
        close = nearest(dtype, accepts.dtypes)
        raise UnsupportedDTypeError(
            f"{target} has no {dtype}" + (f"; pass dtype={close!r} to convert" if close else ""),
            dtype=dtype,
            nearest=close,
        )
    if DTYPES[facts.dtype].kind == "complex" != DTYPES[dtype].kind:
        raise UnsupportedDTypeError(
            f"{facts.dtype} to {dtype} would drop the imaginary part; convert x.real, or x.imag",
            dtype=dtype,
        )
    return dtype


def _check_device(spec: TensorSpec, request: Request, accepts: Accepts, target: str) -> None:
    if spec.device.kind not in accepts.devices:
        raise DeviceError(
            f"this tensor is on {spec.device}, and tbridge converts to {target} from "
            f"{' or '.join(sorted(accepts.devices))} alone; move it there first"
        )
    if request.device is not None and request.device != spec.device:
        raise DeviceError(
            f"device={str(request.device)!r} was asked for, and the tensor is on {spec.device}; "
            "tbridge does not move tensors between devices; use the framework's own call"
        )


def _refuse_sharing(
    facts: _Facts, settings: object, accepts: Accepts, unwritable: bool, target: str
) -> None:
    """Raise where `options` says that sharing is an error."""
    for name, applies in (
        ("immutable", facts.immutable and unwritable),
        ("mutable", accepts.immutable and not facts.immutable),
    ):
        if applies and getattr(settings, name) == "error":
            reason = f"options({name}='error') forbids {target} to share this memory"
            raise CopyRequiredError(f"{reason}; pass copy=True", reasons=(reason,))


def _why_shared(
    facts: _Facts, accepts: Accepts, target: str, read_only_result: bool, promised: bool
) -> str:
    if read_only_result:
        return f"{target} shares the memory, and refuses to write it"
    if promised:
        return f"{target} shares the memory, which you promised not to write"
    if facts.immutable and not accepts.immutable:
        return f"{target} shares memory that is immutable by convention; a write would show there"
    return f"{target} shares the memory"


def _refuse_copy(made: Plan, decision: _Decision) -> None:
    reasons = tuple(reason for _, reason, moves in decision.steps if moves)
    lines = [f"{made.target} cannot share this {made.source} tensor:"]
    lines += [f"  - {reason}" for reason in reasons]
    others = f", or: {'; '.join(decision.remedies)}" if decision.remedies else ""
    lines.append(f"drop copy=False to get a copy{others}")
    raise CopyRequiredError("\n".join(lines), reasons=reasons, plan=made)
