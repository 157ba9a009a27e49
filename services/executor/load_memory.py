"""How much memory a model takes: by how much its process has grown while it was loaded.

A backend whose models live in other processes, or who knows better, gives its models an attribute
`memory_bytes`. A GPU's memory is NVML's figure for the whole device, since in containers NVML knows
no processes. While several models load at a time nobody can say which of them took what: then the
size of a model's files stands for it. So it does where that is more than the growth, as of a model
that is loaded into memory that the process still had from another one.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.services.executor import devices
from nereid.services.executor.settings import visible_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nereid.services.executor.takeover.model_files import ModelFiles

_log = logging.getLogger(__name__)

_CPU: Final = "cpu"


class LoadMeter:
    """Measures loads, in any thread."""

    def __init__(
        self,
        resident_bytes: Callable[[], int] | None = None,
        gpu_bytes: Callable[[int], int | None] | None = None,
    ) -> None:
        """resident_bytes: of this process. gpu_bytes: in use on a GPU; None: unknown."""
        self._resident_bytes = resident_bytes or process_bytes
        self._gpu_bytes = gpu_bytes or used_gpu_bytes
        self._lock = threading.Lock()
        self._measuring: set[Growth] = set()

    @contextmanager
    def measuring(self, gpu: int | None) -> Iterator[Growth]:
        """For as long as a model is loaded, onto this GPU; None: on the CPU."""
        growth = Growth(gpu, self._read)
        with self._lock:
            for each in (*self._measuring, growth) if self._measuring else ():
                each.overlaps = True
            self._measuring.add(growth)
        try:
            yield growth
        finally:
            with self._lock:
                self._measuring.discard(growth)

    def _read(self, gpu: int | None) -> dict[str, int]:
        trim_memory()
        sizes = {_CPU: self._resident_bytes()}
        if gpu is not None and (used := self._gpu_bytes(gpu)) is not None:
            sizes[_device(gpu)] = used
        return sizes


class Growth:
    """By how much the memory in use grows during one load."""

    def __init__(self, gpu: int | None, read: Callable[[int | None], dict[str, int]]) -> None:
        self._gpu = gpu
        self._read = read
        self._before = read(gpu)
        # Another load began, or went on, meanwhile.
        self.overlaps = False

    def sizes(self, model: object, files: ModelFiles | None) -> dict[str, int]:
        """The bytes so far, by device: "cpu", or "gpu" and its number."""
        device = _device(self._gpu)
        sizes = {device: sum(size for _, size, _, _ in files.version) if files is not None else 0}
        if not self.overlaps:
            for each, size in self._read(self._gpu).items():
                growth = size - self._before.get(each, size)
                sizes[each] = max(sizes.get(each, 0), growth)
        own: Any = getattr(model, "memory_bytes", None)
        return sizes | {_CPU: own} if isinstance(own, int) else sizes


def trim_memory() -> None:
    """Give the system back what C code of this process has freed. Without being asked glibc keeps
    most of it: an unloaded model's weights, and what its load has taken for a moment.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


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


def used_gpu_bytes(gpu: int) -> int | None:
    """The memory in use on a GPU, by anybody; None: NVML does not say."""
    uuid = next((each.uuid for each in devices.gpus(visible_gpus()) if each.id == gpu), "")
    if not uuid:
        return None
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception as error:
        _log.debug("the memory of GPU %d is not known: %s", gpu, error)
        return None
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(uuid)).used)
    except nvml.NVMLError as error:
        _log.debug("the memory of GPU %d is not known: %s", gpu, error)
        return None
    finally:
        nvml.nvmlShutdown()


def _device(gpu: int | None) -> str:
    return _CPU if gpu is None else f"gpu {gpu}"
