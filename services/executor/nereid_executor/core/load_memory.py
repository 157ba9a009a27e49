"""How much memory a model takes: by how much its process has grown while it was loaded.

A backend whose models live in other processes, or who knows better, gives its models an attribute
`memory_bytes`. A GPU's memory is NVML's figure for the whole device, since in containers NVML knows
no processes. While several models load at a time nobody can say which of them took what: then the
size of a model's files stands for it. So it does where that is more than the growth, as of a model
that is loaded into memory that the process still had from another one.

Measuring costs milliseconds, so a model that is loaded again and again is measured twice.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.bounded_cache import BoundedCache
from nereid_executor.core import devices
from nereid_executor.core.heap import trim_heap
from nereid_executor.settings import visible_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from nereid_executor.core.files.model_files import ModelFiles

_CPU: Final = "cpu"
# Bounds what is remembered of loads.
_MOST_REMEMBERED: Final = 4096
# A load is measured so many times; the smallest figure counts.
_MEASUREMENTS: Final = 2


class LoadMeter:
    """Measures loads, in any thread."""

    def __init__(
        self,
        resident_bytes: Callable[[], int] | None = None,
        gpu_bytes: Callable[[int], int | None] | None = None,
    ) -> None:
        """resident_bytes: of this process. gpu_bytes: in use on a GPU; None: unknown."""
        self._resident_bytes = resident_bytes or process_bytes
        self._gpu_bytes = gpu_bytes or (lambda gpu: devices.used_bytes(gpu, visible_gpus()))
        self._lock = threading.Lock()
        self._measuring: set[Growth] = set()
        # What loads have taken, each time that they were measured.
        self._measured: BoundedCache[Hashable, tuple[dict[str, int], ...]] = BoundedCache(
            _MOST_REMEMBERED
        )

    @contextmanager
    def measuring(self, gpu: int | None, load: Hashable = None) -> Iterator[Growth]:
        """For as long as a model is loaded, onto this GPU; None: on the CPU. load: equal to that of
        loads which take the same; None: unlike any other.
        """
        measured = self._measured.get(load, ())
        growth = Growth(gpu, self._read, measured if len(measured) == _MEASUREMENTS else ())
        with self._lock:
            for each in (*self._measuring, growth) if self._measuring else ():
                each.overlaps = True
            self._measuring.add(growth)
        try:
            yield growth
        finally:
            with self._lock:
                self._measuring.discard(growth)
                if load is not None and growth.measured is not None:
                    self._measured.remember(load, (*measured, growth.measured))

    def _read(self, gpu: int | None) -> dict[str, int]:
        trim_heap()
        sizes = {_CPU: self._resident_bytes()}
        if gpu is not None and (used := self._gpu_bytes(gpu)) is not None:
            sizes[_device(gpu)] = used
        return sizes


class Growth:
    """By how much the memory in use grows during one load."""

    def __init__(
        self,
        gpu: int | None,
        read: Callable[[int | None], dict[str, int]],
        earlier: Sequence[dict[str, int]] = (),
    ) -> None:
        """earlier: what equal loads have taken, in place of a measurement; empty: unknown."""
        self._gpu = gpu
        self._read = read
        self._earlier = earlier
        self._before = {} if earlier else read(gpu)
        # Another load began, or went on, meanwhile.
        self.overlaps = False
        # None: it could not be measured, or need not be.
        self.measured: dict[str, int] | None = None

    def sizes(self, model: object, files: ModelFiles | None) -> dict[str, int]:
        """The bytes so far, by device: "cpu", or "gpu" and its number."""
        device = _device(self._gpu)
        sizes = {device: sum(size for _, size, _ in files.version) if files is not None else 0}
        for each, growth in self._growth().items():
            sizes[each] = max(sizes.get(each, 0), growth)
        own: Any = getattr(model, "memory_bytes", None)
        return sizes | {_CPU: own} if isinstance(own, int) else sizes

    def _growth(self) -> dict[str, int]:
        if self._earlier:
            # The first load of a process takes what its runtime needs once, too.
            devices_of_all = set(self._earlier[0]).intersection(*self._earlier)
            return {each: min(sizes[each] for sizes in self._earlier) for each in devices_of_all}
        if self.overlaps:
            return {}
        now = self._read(self._gpu)
        self.measured = {each: size - self._before.get(each, size) for each, size in now.items()}
        return self.measured


def write_sizes(sizes: dict[str, int]) -> str:
    """As the scheduler reads them (MEMORY_KEY)."""
    return ",".join(f"{device}={size}" for device, size in sorted(sizes.items()))


def process_bytes(pid: int | None = None) -> int:
    """The resident memory of a process, by default this one; 0: it is gone."""
    try:
        pages = Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _device(gpu: int | None) -> str:
    return _CPU if gpu is None else f"gpu {gpu}"
