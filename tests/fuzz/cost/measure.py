"""Processor time in steps, which are the same on all machines, and memory at its peak."""

from __future__ import annotations

import ctypes
import gc
import time
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path

_REFERENCE = bytes(1 << 18)
_KIB = 1024


def _reference_loop() -> None:
    total = 0
    for byte in _REFERENCE:
        total += byte ^ 1


@cache
def step_s() -> float:
    """One turn of a loop that does next to nothing, in seconds: some 20 to 60 ns."""
    return min(processor_s(_reference_loop) for _ in range(7)) / len(_REFERENCE)


def processor_s(run: Callable[[], object]) -> float:
    """This process's processor time for one run, without what the garbage collector takes: that
    depends on all that the process has.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        start = time.process_time()
        run()
        return time.process_time() - start
    finally:
        if collects:
            gc.enable()


def peak_bytes(run: Callable[[], object]) -> int:
    """The most memory that a run had at a time: Python's, and where Linux tells the process's."""
    gc.collect()
    _give_back_free_memory()
    resident = _reset_peak()
    tracemalloc.start()
    try:
        run()
        _, traced = tracemalloc.get_traced_memory()
        tables = tracemalloc.get_tracemalloc_memory()
    finally:
        tracemalloc.stop()
    grown = 0 if resident is None else _status("VmHWM") - resident - tables
    return max(traced, grown)


def _give_back_free_memory() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_peak() -> int | None:
    """The resident memory, at which the peak begins anew; None: this is not Linux."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:
        return None


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) * _KIB
