"""The command line: `demo`, `doctor`, `explain`. Prints what public functions return.

It decides nothing about tensors itself: what is shared and why is read from plans.
"""

from __future__ import annotations

import functools
import platform
import re
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from math import prod
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, ParamSpec

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tbridge import __version__, layout, planner, registry
from tbridge._core import _native
from tbridge.contracts import Accepts, Framework, Plan, Request, TensorSpec
from tbridge.convert import convert, empty, inspect, shares_memory
from tbridge.convert import explain as plan_of
from tbridge.dtypes import DTYPES, name_of, nearest
from tbridge.errors import (
    FrameworkMissingError,
    OptionError,
    TBridgeError,
    UnsupportedDTypeError,
)
from tbridge.frameworks import raw
from tbridge.options import current
from tbridge.testing import bits_of

__all__ = ["app", "main"]

_P = ParamSpec("_P")

_PLAIN_WIDTH = 110  # columns, where the output is no terminal
_WIDE = 100  # columns that leave room for whole calls beside the reasons
_BATCH = (16, 224, 224, 3)  # images, rows, columns, channels
_ROUNDS = 9
_ROUND_SECONDS = 0.004  # of calls, so that the clock's own steps do not show
_FRESH = 200  # tensors, to see where allocators place them
_BOUNDARY = 1 << 20  # any address that every alignment divides
# of a protocol: whatever somebody lends by it, but in native byte order
_ANYTHING = Accepts(dtypes=frozenset(DTYPES), swapped=False)

app = typer.Typer(
    help="Move tensors between frameworks in one process: shared where safe, copied where needed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; `tbridge` on the path calls this."""
    app(prog_name="tbridge")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tbridge {__version__}")
        raise typer.Exit


@app.callback()
def _all_commands(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, help="Say the version."),
    ] = False,
) -> None:
    pass


def _command(function: Callable[_P, None]) -> Callable[_P, None]:
    """Add a command whose errors are one message: bad arguments deserve no traceback."""

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        raw.quiet()
        try:
            function(*args, **kwargs)
        except (TBridgeError, ImportError) as error:  # a framework's own import may fail
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error

    return app.command()(run)


def _console() -> Console:
    # reasons and errors hold brackets, which are no markup
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    return console


def _table(*columns: str, whole: tuple[str, ...] = (), right: tuple[str, ...] = ()) -> Table:
    """Return an empty table; the columns in `whole` keep their lines, `right` are numbers."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=justify, no_wrap=column in whole, overflow="fold")
    return table


@dataclass(frozen=True, slots=True)
class _Found:
    """A framework that tensors can be converted to, and what became of importing it."""

    framework: Framework
    missing: str = ""  # how to install it
    broken: str = ""  # what its import raised

    @property
    def name(self) -> str:
        return self.framework.name

    @property
    def trouble(self) -> str:
        if self.missing:
            return f"not installed; {self.missing}"
        return self.broken and f"its import fails: {self.broken}"


def _find_targets(console: Console) -> list[_Found]:
    with console.status("importing every framework, which takes a while"):
        return [_find(framework) for framework in registry.frameworks() if framework.is_target]


def _find(framework: Framework) -> _Found:
    try:
        registry.target_of(framework.name)
    except FrameworkMissingError as error:
        return _Found(framework, missing=error.command)
    except Exception as error:  # a broken installation raises anything, and is to be named
        return _Found(framework, broken=f"{type(error).__name__}: {error}")
    return _Found(framework)


# demo


@_command
def demo() -> None:
    """Convert real arrays through every pair of installed frameworks, and time it."""
    console = _console()
    found = _find_targets(console)
    for one in found:
        if one.trouble:
            typer.echo(f"skipped {one.name}: {one.trouble}")
    names = [one.name for one in found if not one.trouble]
    if len(names) < 2:
        typer.echo(f"only {names[0]} is here: a conversion needs two frameworks")
        return
    routes = list(_routes(names))
    console.print(_routes_table(routes, wide=console.width >= _WIDE))
    wrong = [route for route in routes if not route.equal]
    for route in wrong:
        typer.echo(f"wrong values: {route.plan.source} -> {route.plan.target}, {route.what}")
    if wrong:
        raise typer.Exit(1)
    typer.echo(f"all {len(routes)} results equal their source bit for bit")


@dataclass(frozen=True, slots=True)
class _Route:
    """One conversion that ran: its plan, seconds here and by the framework's own way, the check."""

    what: str
    plan: Plan
    seconds: float
    own_way: str
    own_seconds: float | None
    equal: bool


def _routes(names: Sequence[str]) -> Iterator[_Route]:
    batch = empty(_BATCH, "float32")
    batch[...] = np.random.default_rng(0).random(_BATCH, dtype="float32")
    for source in names:
        samples = _samples(source, batch)
        for target in names:
            if source != target:
                yield from _first_of_each(samples, target)


def _samples(source: str, batch: Any) -> list[raw.Sample]:
    if source in raw.SAMPLES:
        return list(raw.SAMPLES[source](batch))
    return [("a batch", batch, convert(batch, source))]


def _first_of_each(samples: Sequence[raw.Sample], target: str) -> Iterator[_Route]:
    """Run the first sample that is shared and the first that is copied, as their plans say."""
    done: set[bool] = set()
    for what, values, x in samples:
        plan = plan_of(x, target)
        if plan.zero_copy not in done:
            done.add(plan.zero_copy)
            yield _run(what, values, x, plan)


def _run(what: str, values: Any, x: Any, plan: Plan) -> _Route:
    target = plan.target
    result = convert(x, target)
    # read without tbridge, which is not its own witness, where that way is known
    arrived = np.asarray(result if target in raw.SAMPLES else convert(result, "numpy"))
    pair = (plan.source, target)
    own = raw.OWN_WAYS.get(pair)
    if not plan.zero_copy:
        own = raw.OWN_COPIES.get(pair, own)
    calls: list[Callable[[], object]] = [lambda: convert(x, target)]
    if own is not None:
        call = own[1]
        calls.append(lambda: call(x))
    seconds, *own_seconds = _medians(calls)
    return _Route(
        what=what,
        plan=plan,
        seconds=seconds,
        own_way=own[0] if own else "",
        own_seconds=own_seconds[0] if own_seconds else None,
        equal=bits_of(arrived) == bits_of(values),
    )


def _medians(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Return the median seconds of each call: warm, in turns, so that all meet the same machine."""
    repeats = [_repeats(call) for call in calls]
    rounds = [
        [timeit.timeit(call, number=n) / n for call, n in zip(calls, repeats, strict=True)]
        for _ in range(_ROUNDS)
    ]
    return [median(one) for one in zip(*rounds, strict=True)]


def _repeats(call: Callable[[], object]) -> int:
    call()  # the first one plans, and later ones are served
    return max(1, int(_ROUND_SECONDS / timeit.timeit(call, number=3) * 3))


def _routes_table(routes: Sequence[_Route], *, wide: bool) -> Table:
    table = _table(
        *("route", "tensor", "memory, and why", "tbridge", "the plain call", "ratio", "equal"),
        whole=("route", "tensor", "tbridge", "the plain call", "ratio") if wide else (),
        right=("tbridge", "ratio"),
    )
    for route, following in zip(routes, [*routes[1:], None], strict=True):
        plan, own = route.plan, route.own_seconds
        table.add_row(
            f"{plan.source} ->\n{plan.target}",
            f"{route.what}\n{plan.dtype}\n{'x'.join(map(str, plan.shape))}",
            f"{_verdict(plan)}: {'; '.join(plan.reasons)}",
            _time(route.seconds),
            f"{_in_two(route.own_way)}\n{_time(own)}" if own is not None else "no call of its own",
            f"{route.seconds / own:.2g}" if own is not None else "",
            "yes" if route.equal else "NO",
            end_section=following is None or following.plan.target != plan.target,
        )
    return table


def _verdict(plan: Plan) -> str:
    return "itself" if plan.identity else "shared" if plan.zero_copy else "copied"


def _in_two(call: str) -> str:
    """Return a long call on two lines, so that the reasons beside it have room."""
    if len(call) <= 20:
        return call
    cut = call.find("(x.") + 1 or call.rfind(".")
    return f"{call[:cut]}\n  {call[cut:]}"


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms"


# doctor


@_command
def doctor() -> None:
    """Say what is installed, what shares memory with what, and what is wrong; exit 1 then."""
    console = _console()
    found = _find_targets(console)
    usable = [one.framework for one in found if not one.trouble]
    parts = _parts(found)
    pairs = [_try_pair(source, target) for source in usable for target in usable]

    typer.echo(f"Python {platform.python_version()} on {platform.platform()}")
    # without the core nothing of tbridge can be imported, and its absence says itself what to do
    typer.echo(f"tbridge {__version__} with its core, {Path(_native.__file__).name}")
    console.print(_parts_table(parts))
    typer.echo("an aligned float32 tensor, from the framework of the row to that of the column")
    console.print(_pairs_table(pairs))
    for line in (*_alignment(usable), *_gpus(usable)):
        typer.echo(line)
    typer.echo()

    wrong = [f"{part.name}: {part.state}" for part in parts if part.wrong]
    wrong += [f"{pair.source} -> {pair.target}: {pair.problem}" for pair in pairs if pair.problem]
    for problem in wrong:
        typer.echo(f"wrong: {problem}")
    if wrong:
        raise typer.Exit(1)
    typer.echo("nothing is wrong")


@dataclass(frozen=True, slots=True)
class _Part:
    """A package that tbridge works with."""

    name: str
    version: str
    oldest: str  # that tbridge supports
    state: str
    wrong: bool


def _parts(found: Sequence[_Found]) -> list[_Part]:
    requirements = _requirements()
    oldest = {name: version for name, version, _ in requirements}
    parts = [_framework_part(one, oldest.get(one.framework.module, "")) for one in found]
    modules = {one.framework.module for one in found}
    parts += [
        _needed_part(name, version)
        for name, version, needed in requirements
        if needed and name not in modules
    ]
    if not requirements:
        parts.append(_Part("tbridge", "", "", "not installed as a package; pip install .", True))
    return parts


def _requirements() -> list[tuple[str, str, bool]]:
    """Return name, oldest version and whether it is always needed, as tbridge's metadata says."""
    try:
        lines = metadata.requires("tbridge") or []
    except metadata.PackageNotFoundError:  # run from a folder
        return []
    matches = (re.match(r"([\w.-]+)>=([\d.]+)(.*)", line) for line in lines)
    return [(m[1], m[2], "extra" not in m[3]) for m in matches if m]


def _framework_part(one: _Found, oldest: str) -> _Part:
    version = registry.version_of(one.framework) or ""
    age = _too_old(version, oldest)
    state = one.trouble or age or "imported"
    return _Part(one.name, version, oldest, state, bool(one.broken or (age and not one.missing)))


def _needed_part(name: str, oldest: str) -> _Part:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return _Part(name, "", oldest, f"not installed; pip install {name}", True)
    age = _too_old(version, oldest)
    return _Part(name, version, oldest, age or "installed", bool(age))


def _too_old(version: str, oldest: str) -> str:
    """Say so if a version is older than another; the text behind its numbers does not count."""
    if not version or not oldest or _numbers(version) >= _numbers(oldest):
        return ""
    return f"{version} is older than {oldest}, the oldest that tbridge supports; upgrade it"


def _numbers(version: str) -> list[int]:
    release = re.match(r"[\d.]*\d", version)
    return [int(n) for n in release[0].split(".")] if release else []


def _parts_table(parts: Sequence[_Part]) -> Table:
    table = _table("package", "version", "at least", "state")
    for part in parts:
        table.add_row(part.name, part.version, part.oldest, part.state)
    return table


@dataclass(frozen=True, slots=True)
class _Pair:
    """What happened to an aligned float32 tensor, and what is wrong with that."""

    source: str
    target: str
    verdict: str
    problem: str = ""


def _try_pair(source: Framework, target: Framework) -> _Pair:
    pair = functools.partial(_Pair, source.name, target.name)
    try:
        blank = empty((4, 4), "float32")
        blank[...] = 0
        x = convert(blank, source.name)
        plan = plan_of(x, target.name)
        shared = shares_memory(x, convert(x, target.name))
        should = target.accepts(inspect(x)).shares
    except Exception as error:  # a broken installation raises anything, and is to be named
        return pair("fails", f"{type(error).__name__}: {error}")
    verdict = _verdict(plan)
    if should and not plan.zero_copy:
        return pair(verdict, f"should share, and copies: {'; '.join(plan.reasons)}")
    if plan.zero_copy and not shared:
        return pair(verdict, "its plan says shared, and its memory is not")
    return pair(verdict)


def _pairs_table(pairs: Sequence[_Pair]) -> Table:
    targets = list(dict.fromkeys(pair.target for pair in pairs))
    table = _table("", *targets)
    for source in dict.fromkeys(pair.source for pair in pairs):
        table.add_row(source, *(pair.verdict for pair in pairs if pair.source == source))
    return table


def _alignment(usable: Sequence[Framework]) -> Iterator[str]:
    """Say where allocators place tensors, and which framework minds."""
    spec = inspect(empty((4, 4), "float32"))
    for framework in usable:
        if framework.name in raw.FRESH:
            fresh = [raw.FRESH[framework.name]() for _ in range(_FRESH)]
            aligned = sum(inspect(x).aligned for x in fresh)
            yield f"{aligned} of {_FRESH} fresh {framework.name} tensors start on 64 bytes"
    for framework in usable:
        needed = framework.accepts(spec).alignment
        if needed > 1:
            yield (
                f"{framework.name} shares memory that starts on {needed} bytes, and copies other; "
                "tbridge.empty starts there"
            )


def _gpus(usable: Sequence[Framework]) -> Iterator[str]:
    for framework in usable:
        if framework.name in raw.GPUS:
            seen = raw.GPUS[framework.name]()
            yield f"GPUs that {framework.name} sees: {', '.join(seen) or 'none'}"


# explain


@_command
def explain(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The framework of the tensor.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The framework to convert to.")],
    dtype: Annotated[str, typer.Option(help="Such as float32 or bfloat16.")] = "float32",
    shape: Annotated[str, typer.Option(help="Lengths: 3,4. A scalar's is empty.")] = "3,4",
    order: Annotated[str, typer.Option(help="C for row-major, F for column-major.")] = "C",
    offset: Annotated[
        int, typer.Option(min=0, help="Bytes from a 64-byte boundary to the tensor's start.")
    ] = 0,
    backwards: Annotated[
        bool, typer.Option("--reversed", help="Along the first axis, as x[::-1].")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="In read-only memory.")] = False,
    swapped: Annotated[bool, typer.Option("--swapped", help="In foreign byte order.")] = False,
    copy: Annotated[
        bool | None, typer.Option("--copy/--no-copy", help="copy=True, copy=False.")
    ] = None,
    writable: Annotated[
        bool | None,
        typer.Option("--writable/--not-writable", help="writable=True, writable=False."),
    ] = None,
) -> None:
    """Print the plan for a tensor that is so, without having one.

    Bools count as all 0 or 1: that needs a look at the values.
    """
    lengths, name = _shape(shape), _dtype(dtype)
    if order not in ("C", "F"):
        raise OptionError(f"--order {order!r} is neither C nor F", option="order")
    wanted = registry.target_of(target)
    origin = _source(source)
    spec = _row_major(origin.name, lengths, name, offset)
    if order == "F":
        spec = _column_major(spec)
    if backwards:
        spec = _backwards(spec)
    # elements of one byte have no byte order
    spec = replace(spec, writable=not read_only, swapped=swapped and spec.itemsize > 1)
    spec = _as_made_by(origin, spec)
    request = Request(copy=copy, writable=writable, settings=current())
    typer.echo(planner.plan(spec, request, wanted.accepts(spec), wanted.name))


def _shape(text: str) -> tuple[int, ...]:
    # longer numbers than these are no lengths that an address could reach
    if not re.fullmatch(r"([0-9]{1,18}(,[0-9]{1,18})*)?,?", text) or text == ",":
        raise OptionError(
            f"--shape {text!r} is no list of lengths; write one such as 3,4", option="shape"
        )
    return tuple(int(length) for length in text.split(",") if length)


def _dtype(text: str) -> str:
    name = name_of(text)
    if name not in DTYPES:
        raise UnsupportedDTypeError(f"--dtype {text!r} is none of {', '.join(DTYPES)}", dtype=name)
    return name


def _source(name: str) -> Framework:
    for framework in registry.frameworks():
        if name == framework.name and not framework.is_target:
            return framework  # a protocol, which can only be a source
    return registry.target_of(name)


def _row_major(framework: str, shape: tuple[int, ...], dtype: str, offset: int) -> TensorSpec:
    strides = layout.c_strides(shape, DTYPES[dtype].itemsize)
    ptr = _BOUNDARY + offset
    return TensorSpec(framework=framework, shape=shape, dtype=dtype, byte_strides=strides, ptr=ptr)


def _column_major(spec: TensorSpec) -> TensorSpec:
    return replace(spec, byte_strides=layout.c_strides(spec.shape[::-1], spec.itemsize)[::-1])


def _backwards(spec: TensorSpec) -> TensorSpec:
    """Return the spec of `x[::-1]`: the first element is where the last row was."""
    if not spec.shape:
        raise OptionError("--reversed: a scalar has no axis to reverse", option="reversed")
    step = spec.byte_strides[0]
    last = spec.ptr + (spec.shape[0] - 1) * step
    return replace(spec, byte_strides=(-step, *spec.byte_strides[1:]), ptr=last)


def _as_made_by(origin: Framework, spec: TensorSpec) -> TensorSpec:
    """Add what holds for every tensor of a framework; refuse what none of its tensors is."""
    own = origin.accepts(spec) if origin.is_target else _ANYTHING
    if spec.dtype not in own.dtypes:
        close = nearest(spec.dtype, own.dtypes)
        hint = f"; its nearest is {close}" if close else ""
        raise UnsupportedDTypeError(
            f"--dtype {spec.dtype}: {origin.name} has no such tensors{hint}",
            dtype=spec.dtype,
            nearest=close,
        )
    for option, is_so, can_be in (
        ("reversed", spec.negative_strides, own.negative_strides),
        ("order", not spec.contiguous, own.strided),
        ("swapped", spec.swapped, own.swapped),
    ):
        if is_so and not can_be:
            raise OptionError(
                f"--{option}: {origin.name} has no such tensors, so there is no plan; drop it",
                option=option,
            )
    one_element = prod(spec.shape) == 1
    return replace(
        spec, immutable=own.immutable, interned=one_element and origin.name in raw.INTERN
    )
