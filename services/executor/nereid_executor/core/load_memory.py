"""The memory that a model takes, measured as the growth of its process during the load.

A GPU's figure is for the whole device, since in containers NVML does not see processes. The size of
the files is used for overlapping loads, and if it is larger: a load may reuse memory that the
process kept. A measurement takes milliseconds, so equal loads are measured only twice.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.bounded_cache import BoundedCache
from nereid_executor.core import devices
from nereid_executor.core.heap import trim_heap
from nereid_executor.settings import visible_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from nereid_executor.core.model_files import ModelFiles

_CPU: Final = "cpu"
_MAX_REMEMBERED: Final = 4096
# Equal loads are measured this often. The smallest result counts.
_MEASUREMENTS: Final = 2


class LoadMeter:
    """Measures loads. Any thread may use it."""

    def __init__(
        self,
        resident_bytes: Callable[[], int] | None = None,
        gpu_bytes: Callable[[int], int | None] | None = None,
    ) -> None:
        self._resident_bytes = resident_bytes or process_bytes
        self._gpu_bytes = gpu_bytes or (lambda gpu: devices.used_bytes(gpu, visible_gpus()))
        self._lock = threading.Lock()
        self._measuring: set[LoadMeasurement] = set()
        # Maps a load's key to the results of its measurements.
        self._measured: BoundedCache[Hashable, tuple[dict[str, int], ...]] = BoundedCache(
            _MAX_REMEMBERED
        )

    @contextmanager
    def measuring(self, gpu: int | None, load: Hashable = None) -> Iterator[LoadMeasurement]:
        """Measure the load of a model, which takes place within the context.

        load: a key that equal loads share; `None` if no equal load is known.
        """
        measured = self._measured.get(load, ())
        measurement = LoadMeasurement(
            gpu, self._read, measured if len(measured) == _MEASUREMENTS else ()
        )
        with self._lock:
            for overlapping in (*self._measuring, measurement) if self._measuring else ():
                overlapping.overlaps = True
            self._measuring.add(measurement)
        try:
            yield measurement
        finally:
            with self._lock:
                self._measuring.discard(measurement)
                if load is not None and measurement.measured is not None:
                    self._measured.remember(load, (*measured, measurement.measured))

    def _read(self, gpu: int | None) -> dict[str, int]:
        trim_heap()
        sizes = {_CPU: self._resident_bytes()}
        if gpu is not None and (used := self._gpu_bytes(gpu)) is not None:
            sizes[_device(gpu)] = used
        return sizes


class LoadMeasurement:
    """Measures how the memory in use grows during one load."""

    def __init__(
        self,
        gpu: int | None,
        read: Callable[[int | None], dict[str, int]],
        earlier: Sequence[dict[str, int]] = (),
    ) -> None:
        """earlier: measurements of earlier equal loads. If there are any, nothing is measured."""
        self._gpu = gpu
        self._read = read
        self._earlier = earlier
        self._before = {} if earlier else read(gpu)
        # True if another load takes place at the same time.
        self.overlaps = False
        # Key: a device. `None` if nothing was measured.
        self.measured: dict[str, int] | None = None

    def sizes(self, declared_bytes: int | None, files: ModelFiles | None) -> dict[str, int]:
        """Return the bytes that the load takes so far. Key: a device ("cpu", "gpu 0").

        declared_bytes: replaces the measurement of the host's memory.
        """
        device = _device(self._gpu)
        sizes = {device: sum(size for _, size, _ in files.version) if files is not None else 0}
        for each, growth in self._growth().items():
            sizes[each] = max(sizes.get(each, 0), growth)
        return sizes if declared_bytes is None else sizes | {_CPU: declared_bytes}

    def _growth(self) -> dict[str, int]:
        if self._earlier:
            # The first load of a process includes what the runtime needs only once.
            devices_of_all = set(self._earlier[0]).intersection(*self._earlier)
            return {
                device: min(sizes[device] for sizes in self._earlier) for device in devices_of_all
            }
        if self.overlaps:
            return {}
        now = self._read(self._gpu)
        self.measured = {each: size - self._before.get(each, size) for each, size in now.items()}
        return self.measured


def write_sizes(sizes: dict[str, int]) -> str:
    """Return sizes in the form that the scheduler reads (MEMORY_KEY)."""
    return ",".join(f"{device}={size}" for device, size in sorted(sizes.items()))


def process_bytes(pid: int | None = None) -> int:
    """Return the resident bytes of a process, by default this process; 0 if it has ended."""
    try:
        pages = Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _device(gpu: int | None) -> str:
    return _CPU if gpu is None else f"gpu {gpu}"
