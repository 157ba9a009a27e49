"""The devices on which an executor can run models: the CPU, and with NVML also GPUs.

A GPU's number is CUDA's: its index among the GPUs in CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import importlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class Gpu(NamedTuple):
    """A GPU, or one MIG slice of a GPU."""

    uuid: str
    name: str
    memory_bytes: int
    # Index in NVML's order. Slices of a GPU share its index.
    number: int
    is_slice: bool = False


def cpu() -> pb.Device:
    """Return the machine's processors and memory as a device."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return pb.Device(
        kind=pb.Device.CPU, id=0, name=cpu_name(Path("/proc/cpuinfo")), memory_bytes=memory_bytes
    )


def cpu_name(cpuinfo: Path) -> str:
    """Return the model name of the processor, or "CPU" if /proc does not list it."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return "CPU"
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "CPU")


def gpus(selection: str | None) -> list[pb.Device]:
    """Return the GPUs that CUDA shows to this process, by CUDA's numbers."""
    return [
        pb.Device(
            kind=pb.Device.GPU,
            id=number,
            uuid=gpu.uuid,
            name=gpu.name,
            memory_bytes=gpu.memory_bytes,
        )
        for number, gpu in enumerate(select_visible(_query_nvml(_all_gpus) or (), selection))
    ]


def select_visible(found: Sequence[Gpu], selection: str | None) -> list[Gpu]:
    """Apply CUDA_VISIBLE_DEVICES as CUDA does: in its order, up to the first unknown GPU.

    A process can use only one slice. If a machine has slices and none is selected, CUDA shows the
    first slice and no other GPU.
    """
    slices = [gpu for gpu in found if gpu.is_slice]
    if selection is None:
        return slices[:1] or list(found)
    chosen: list[Gpu] = []
    for token in selection.split(","):
        gpu = _find(found, token.strip())
        if gpu is None or gpu in chosen:
            break
        chosen.append(gpu)
    chosen_slices = [gpu for gpu in chosen if gpu.is_slice]
    return chosen_slices[:1] or chosen


def _find(found: Sequence[Gpu], token: str) -> Gpu | None:
    if token.isdecimal():
        return next((gpu for gpu in found if gpu.number == int(token)), None)
    # As in CUDA, an unambiguous prefix of a UUID is enough.
    matching = [gpu for gpu in found if token and gpu.uuid.startswith(token)]
    return matching[0] if len(matching) == 1 else None


def used_bytes(gpu: int, selection: str | None) -> int | None:
    """Return the bytes that all processes together use on a GPU; `None` if NVML does not say."""
    uuid = next((device.uuid for device in gpus(selection) if device.id == gpu), "")

    def query(nvml: Any) -> int:
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(uuid)).used)

    return _query_nvml(query) if uuid else None


def _query_nvml(query: Callable[[Any], _Result]) -> _Result | None:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception as error:
        _log.debug("there is no NVML: %s", error)
        return None
    try:
        return query(nvml)
    except nvml.NVMLError as error:
        _log.warning("NVML fails, so that its GPUs are neither offered nor measured: %s", error)
        return None
    finally:
        nvml.nvmlShutdown()


def _all_gpus(nvml: Any) -> list[Gpu]:
    return [gpu for index in range(nvml.nvmlDeviceGetCount()) for gpu in _gpus_at(nvml, index)]


def _gpus_at(nvml: Any, index: int) -> list[Gpu]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        mode, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        mode = nvml.NVML_DEVICE_MIG_DISABLE
    if mode != nvml.NVML_DEVICE_MIG_ENABLE:
        return [_gpu(nvml, handle, index, is_slice=False)]
    slices = []
    for slice_index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slice_index)
        except nvml.NVMLError:
            continue
        slices.append(_gpu(nvml, part, index, is_slice=True))
    return slices


def _gpu(nvml: Any, handle: Any, index: int, *, is_slice: bool) -> Gpu:
    return Gpu(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        number=index,
        is_slice=is_slice,
    )


def host_identity() -> str:
    """Return a text that is equal for processes that share memory: same boot, same /dev/shm."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/dev/shm').stat().st_dev}"  # noqa: S108 - shared memory is there
    except OSError:
        return ""
