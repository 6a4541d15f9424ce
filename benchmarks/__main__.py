"""Print the tables: small tensors, flatness, copies, peak memory. Nothing here is a test."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import torch
from rich.console import Console
from rich.table import Table

import tbridge
from benchmarks.timing import Timing, interleaved, interleaved_fresh

CONSOLE = Console(width=110)
convert = tbridge.convert


def aligned(count: int) -> Any:
    x = tbridge.empty((count,), "float32")
    x[:] = 1
    return x


def small_tensors() -> None:
    """1,000 float32, warm, default options; all checks and the lease are on."""
    a, t = aligned(1000), torch.ones(1000)
    z = tf.constant(np.ones(1000, "float32"))
    from_dlpack, to_dlpack = tf.experimental.dlpack.from_dlpack, tf.experimental.dlpack.to_dlpack
    legacy = torch.utils.dlpack.to_dlpack
    pairs: list[tuple[str, str, float, Callable[[], Any], Callable[[], Any]]] = [
        ("numpy -> torch", "torch.from_numpy(x)", 1.0, lambda: torch.from_numpy(a), lambda: convert(a, to="torch")),
        ("torch -> numpy", "x.numpy()", 0.8, lambda: t.numpy(), lambda: convert(t, to="numpy")),
        ("numpy -> tf", "from_dlpack(x.__dlpack__())", 1.3, lambda: from_dlpack(a.__dlpack__()), lambda: convert(a, to="tf")),
        ("numpy -> tf", "tf.constant(x)", 0.15, lambda: tf.constant(a), lambda: convert(a, to="tf")),
        ("torch -> tf", "from_dlpack(to_dlpack(x))", 1.3, lambda: from_dlpack(legacy(t)), lambda: convert(t, to="tf")),
        ("tf -> torch", "from_dlpack(to_dlpack(x))", 1.3, lambda: torch.from_dlpack(to_dlpack(z)), lambda: convert(z, to="torch")),
        ("tf -> numpy", "x.numpy()", 1.0, lambda: z.numpy(), lambda: convert(z, to="numpy")),
    ]  # fmt: skip
    table = _table("Small tensors: 1,000 float32, warm, interleaved medians", "must be at most")
    for pair, raw_name, limit, raw, ours in pairs:
        times = interleaved({"raw": raw, "tbridge": ours})
        _row(table, pair, raw_name, times, str(limit))
    CONSOLE.print(table)


def fresh_tensors() -> None:
    """A torch tensor never seen before: its storage is locked against resizing then."""
    legacy, from_dlpack = torch.utils.dlpack.to_dlpack, tf.experimental.dlpack.from_dlpack
    table = _table("Fresh torch tensors: another 1,000 float32 each call", "must be at most")
    for pair, raw_name, limit, raw, ours in (
        (
            "torch -> numpy",
            "x.numpy()",
            "1.2",
            lambda x: x.numpy(),
            lambda x: convert(x, to="numpy"),
        ),
        (
            "torch -> tf",
            "from_dlpack(to_dlpack(x))",
            "reported",
            lambda x: from_dlpack(legacy(x)),
            lambda x: convert(x, to="tf"),
        ),
    ):
        calls = {"raw": raw, "tbridge": ours}
        _row(table, pair, raw_name, interleaved_fresh(calls, lambda: torch.ones(1000)), limit)
    CONSOLE.print(table)
    floor = interleaved_fresh(
        {
            "x.numpy()": lambda x: x.numpy(),
            "its storage, and x.numpy()": lambda x: (x.untyped_storage().resizable(), x.numpy()),
        },
        lambda: torch.ones(1000),
    )
    first, second = floor.values()
    CONSOLE.print(
        "  floor for holding the storage (which x.numpy() does not do, so that x.set_() frees it "
        f"under the array): {second.median_ns / first.median_ns:.2f}\n"
    )


def flatness() -> None:
    """Zero-copy time from one element to 1 GiB."""
    table = Table(title="Zero-copy latency by size, ns", title_justify="left")
    table.add_column("bytes", justify="right")
    pairs = ("numpy -> torch", "torch -> numpy", "numpy -> tf", "torch -> tf")
    for pair in pairs:
        table.add_column(pair, justify="right")
    for nbytes in (4, 4 << 10, 4 << 20, 1 << 30):
        a = tbridge.empty((nbytes // 4,), "float32")
        t = torch.empty(nbytes // 4)
        calls = {
            "numpy -> torch": lambda a=a: convert(a, to="torch"),
            "torch -> numpy": lambda t=t: convert(t, to="numpy"),
            "numpy -> tf": lambda a=a: convert(a, to="tf"),
            "torch -> tf": lambda t=t: convert(t, to="tf"),
        }
        times = interleaved(calls, rounds=30)
        table.add_row(f"{nbytes:,}", *(f"{times[pair].median_ns:,.0f}" for pair in pairs))
    CONSOLE.print(table)


def copies() -> None:
    """256 MiB, against np.copyto between warm aligned buffers and the frameworks' own copies."""
    count = 64 << 20
    x, warm = aligned(count), aligned(count)
    square = x.reshape(8192, 8192)
    swapped = x.view(">f4")
    table = Table(title="Copies of 256 MiB: ms, and speed as a ratio", title_justify="left")
    for name in ("copy", "tbridge ms", "of np.copyto, warm", "the framework's own way", "of that"):
        table.add_column(name, justify="left" if name == "copy" else "right")
    cases: list[tuple[str, Callable[[], Any], str, Callable[[], Any]]] = [
        ("numpy -> numpy", lambda: convert(x, to="numpy", copy=True), "x.copy()", lambda: x.copy()),
        ("numpy -> torch", lambda: convert(x, to="torch", copy=True), "torch.tensor(x)", lambda: torch.tensor(x)),
        ("numpy -> tf", lambda: convert(x, to="tf", copy=True), "tf.constant(x)", lambda: tf.constant(x)),
        ("misaligned -> tf", lambda: convert(x[1:], to="tf"), "tf.constant(x)", lambda: tf.constant(x[1:])),
        ("transposed -> tf", lambda: convert(square.T, to="tf"), "tf.constant(x.T)", lambda: tf.constant(square.T)),
        ("transposed torch -> tf", lambda: convert(torch.from_numpy(square).T, to="tf"), "x.contiguous()", lambda: torch.from_numpy(square).T.contiguous()),
        ("byte-swapped -> torch", lambda: convert(swapped, to="torch"), "x.astype(), from_numpy", lambda: torch.from_numpy(swapped.astype("f4"))),
        ("reversed -> torch", lambda: convert(x[::-1], to="torch"), "x.copy(), from_numpy", lambda: torch.from_numpy(x[::-1].copy())),
    ]  # fmt: skip
    for name, ours, raw_name, raw in cases:
        calls = {"tbridge": ours, "raw": raw, "copyto": lambda: np.copyto(warm, x)}
        times = interleaved(calls, rounds=7, number=1)
        own = times["tbridge"].median_ns
        table.add_row(
            name,
            f"{own / 1e6:.0f}",
            f"{times['copyto'].median_ns / own:.2f}",
            raw_name,
            f"{times['raw'].median_ns / own:.2f}",
        )
    CONSOLE.print(table)
    fresh = interleaved(
        {
            "fresh": lambda: np.copyto(tbridge.empty((count,), "float32"), x),
            "warm": lambda: np.copyto(warm, x),
        },
        rounds=7,
        number=1,
    )
    ratio = fresh["warm"].median_ns / fresh["fresh"].median_ns
    CONSOLE.print(
        f"  np.copyto into new memory runs at {ratio:.2f} of np.copyto into warm memory\n"
    )


def peak_memory() -> None:
    """The peak of a copying convert of 1 GiB, beyond the source."""
    if not os.path.exists("/proc/self/status"):
        CONSOLE.print("Peak memory: needs Linux's /proc")
        return
    x = np.ones(1 << 28, "float32")[::-1]
    for to in ("numpy", "torch", "tf"):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak starts again from what is held now
        before = _status("VmHWM")
        y = convert(x, to=to, copy=True)
        grown = _status("VmHWM") - before
        CONSOLE.print(f"Peak memory of a 1 GiB copy to {to}: {grown / (1 << 20):.3f} GiB")
        del y


def _status(field: str) -> int:
    with open("/proc/self/status") as file:
        found = re.search(rf"{field}:\s+(\d+)", file.read())
    return int(found[1]) if found else 0


def _table(title: str, limit: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("pair", "against", "raw ns", "tbridge ns (quartiles)", "ratio", limit):
        table.add_column(name, justify="left" if name in ("pair", "against") else "right")
    return table


def _row(table: Table, pair: str, raw_name: str, times: dict[str, Timing], limit: str) -> None:
    raw, ours = times["raw"], times["tbridge"]
    spread = f"{ours.median_ns:,.0f} ({ours.low_ns:,.0f} to {ours.high_ns:,.0f})"
    ratio = f"{ours.median_ns / raw.median_ns:.2f}"
    table.add_row(pair, raw_name, f"{raw.median_ns:,.0f}", spread, ratio, limit)


def main() -> None:
    """Print every table, or those that are named: `python -m benchmarks small copies`."""
    parts = {
        "small": small_tensors,
        "fresh": fresh_tensors,
        "flat": flatness,
        "copies": copies,
        "memory": peak_memory,
    }
    names = sys.argv[1:] or list(parts)
    unknown = [name for name in names if name not in parts]
    if unknown:
        raise SystemExit(f"no table is named {unknown[0]!r}; there are {', '.join(parts)}")
    CONSOLE.print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors, "
        f"Python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}, "
        f"tensorflow {tf.__version__}\n"
    )
    for name in names:
        parts[name]()


main()
