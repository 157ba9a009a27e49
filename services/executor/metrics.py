"""How busy this machine is, and what this executor counts of itself.

The machine is read from /proc and, where this executor offers GPUs, from NVML; what cannot be read
is left at zero. Knows no stream.
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nereid.observability import metrics
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nereid.observability.metrics_page import Page
    from nereid.services.executor.session import Membership

_log = logging.getLogger(__name__)

Times = tuple[int, int]


class UsageReader:
    """Reads what happened since the last reading; one thread at a time may."""

    def __init__(self, gpu_uuids: Sequence[str], proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._gpu_uuids = gpu_uuids
        self._times = self._read(processor_times, "stat", (0, 0))
        self._nvml: Any = None

    def read(self) -> pb.DeviceUsage:
        """The machine's state now."""
        before, self._times = self._times, self._read(processor_times, "stat", self._times)
        total, used = self._read(memory_bytes, "meminfo", (0, 0))
        return pb.DeviceUsage(
            cpu_utilization=utilization(before, self._times),
            memory_total_bytes=total,
            memory_used_bytes=used,
            gpus=self._read_gpus(),
        )

    def _read(self, parse: Callable[[str], Times], name: str, otherwise: Times) -> Times:
        try:
            return parse((self._proc / name).read_text())
        except (OSError, ValueError, KeyError, IndexError):
            return otherwise

    def _read_gpus(self) -> list[pb.GpuUsage]:
        if not self._gpu_uuids:
            return []
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
                self._nvml.nvmlInit()
            except Exception as error:
                _log.warning("the GPUs' usage cannot be read: %s", error)
                self._gpu_uuids = ()
                return []
        return [gpu_usage(self._nvml, uuid) for uuid in self._gpu_uuids]


def processor_times(stat: str) -> Times:
    """From /proc/stat: how long all processors were busy, and how long in all."""
    words = stat.splitlines()[0].split()
    # user nice system idle iowait irq softirq steal; guests' time is in user's already.
    times = [int(word) for word in words[1:9]]
    return sum(times) - times[3] - times[4], sum(times)


def memory_bytes(meminfo: str) -> Times:
    """From /proc/meminfo: all memory, and what is in use."""
    sizes = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in meminfo.splitlines())
    }
    return sizes["MemTotal"], sizes["MemTotal"] - sizes["MemAvailable"]


def utilization(before: Times, now: Times) -> float:
    """The share of the time between that processors were busy."""
    busy, total = now[0] - before[0], now[1] - before[1]
    return min(1.0, max(0.0, busy / total)) if total > 0 else 0.0


def gpu_usage(nvml: Any, uuid: str) -> pb.GpuUsage:
    """One GPU's state; NVML knows not all of it of every GPU and slice."""
    usage = pb.GpuUsage(uuid=uuid)

    def ask(what: Callable[[Any], Any]) -> Any:
        try:
            return what(handle)
        except nvml.NVMLError:
            return None

    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    except nvml.NVMLError:
        return usage
    rates, memory = ask(nvml.nvmlDeviceGetUtilizationRates), ask(nvml.nvmlDeviceGetMemoryInfo)
    if rates is not None:
        usage.utilization = rates.gpu / 100
    if memory is not None:
        usage.memory_total_bytes, usage.memory_used_bytes = memory.total, memory.used
    # Milliwatts and millijoules.
    usage.power_usage_watts = (ask(nvml.nvmlDeviceGetPowerUsage) or 0) / 1000
    usage.power_limit_watts = (ask(nvml.nvmlDeviceGetPowerManagementLimit) or 0) / 1000
    usage.energy_joules = (ask(nvml.nvmlDeviceGetTotalEnergyConsumption) or 0) / 1000
    return usage


def write(page: Page, stay: Membership | None, gone: Iterable[tuple[Any, int]]) -> None:
    """The executor's own series; gone: batches of the instances that are no more, by version."""
    page.add(
        metrics.EXECUTOR_LINKED, stay is not None and stay.welcomed and not stay.ended.is_set()
    )
    instances: Counter[tuple[str, int]] = Counter()
    batches: Counter[tuple[str, int]] = Counter(dict(gone))
    for instance in stay.instances if stay is not None else ():
        instances[instance.version] += 1
        batches[instance.version] += instance.batches
    for (model, version), count in instances.items():
        labels = {"model": model, "version": str(version)}
        page.add(metrics.EXECUTOR_INSTANCES, count, labels)
    for (model, version), count in batches.items():
        labels = {"model": model, "version": str(version)}
        page.add(metrics.EXECUTOR_BATCHES, count, labels)
