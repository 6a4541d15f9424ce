"""Interleaved timing in one process: the calls take turns, so that noise hits all alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Nanoseconds a call: the median of the rounds, and the quartiles around it."""

    median_ns: float
    low_ns: float
    high_ns: float


def interleaved(
    calls: dict[str, Callable[[], Any]], *, rounds: int = 60, number: int = 300
) -> dict[str, Timing]:
    """Time each call `number` times a round, round by round in turn; warm."""
    for call in calls.values():
        for _ in range(max(number, 3)):
            call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(_once(call, number))
    return {name: _summary(values) for name, values in taken.items()}


def interleaved_fresh(
    calls: dict[str, Callable[[Any], Any]],
    make: Callable[[], Any],
    *,
    rounds: int = 15,
    number: int = 2000,
) -> dict[str, Timing]:
    """The same for calls that take an object never seen before, made outside the clock."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(rounds + 2):
        for name, call in calls.items():
            fresh = [make() for _ in range(number)]
            gc.collect()
            start = time.perf_counter_ns()
            for x in fresh:
                call(x)
            if round_ >= 2:  # the first rounds warm up
                taken[name].append((time.perf_counter_ns() - start) / number)
    return {name: _summary(values) for name, values in taken.items()}


def _once(call: Callable[[], Any], number: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(number):
        call()
    return (time.perf_counter_ns() - start) / number


def _summary(values: Sequence[float]) -> Timing:
    low, median, high = statistics.quantiles(values, n=4)
    return Timing(median, low, high)
