"""Usage of this machine (/proc, NVML), and this executor's own metrics."""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nereid.observability import metrics
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nereid.observability.metrics_page import Page
    from nereid_executor.instances.instance import Instance

_log = logging.getLogger(__name__)

Readings = tuple[int, int]


class UsageReader:
    """Reads the usage since the last reading. One thread at a time may use it."""

    def __init__(
        self,
        gpu_uuids: Sequence[str],
        proc: Path = Path("/proc"),
        groups: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._proc = proc
        self._groups = groups
        self._gpu_uuids = gpu_uuids
        self._times = self._read(processor_times, "stat", (0, 0))
        self._nvml: Any = None

    def read(self) -> pb.DeviceUsage:
        """Return the usage of the machine since the last call."""
        before, self._times = self._times, self._read(processor_times, "stat", self._times)
        total, used = self._read(memory_bytes, "meminfo", (0, 0))
        periods, throttled = self._read_throttling()
        return pb.DeviceUsage(
            cpu_utilization=utilization(before, self._times),
            memory_total_bytes=total,
            memory_used_bytes=used,
            gpus=self._read_gpus(),
            cpu_periods=periods,
            throttled_cpu_periods=throttled,
        )

    def _read(self, parse: Callable[[str], Readings], name: str, otherwise: Readings) -> Readings:
        try:
            return parse((self._proc / name).read_text())
        except (OSError, ValueError, KeyError, IndexError):
            return otherwise

    def _read_throttling(self) -> Readings:
        """Return the periods of this process's CPU limit, and those in which it was stopped."""
        try:
            lines = (self._proc / "self/cgroup").read_text().splitlines()
        except OSError:
            return 0, 0
        for path in cpu_groups(lines):
            # In a container, the file may have the group's path as its host sees it.
            for folder in (path, *path.parents):
                try:
                    return throttled_periods((self._groups / folder / "cpu.stat").read_text())
                except (OSError, ValueError, KeyError):
                    continue
        return 0, 0

    def _read_gpus(self) -> list[pb.GpuUsage]:
        if not self._gpu_uuids:
            return []
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
                self._nvml.nvmlInit()
            except Exception as error:
                _log.warning("GPU usage cannot be read, and is reported as zero: %s", error)
                self._gpu_uuids = ()
                return []
        return [gpu_usage(self._nvml, uuid) for uuid in self._gpu_uuids]


def processor_times(stat: str) -> Readings:
    """Return the busy time and the total time of all processors from the text of /proc/stat."""
    fields = stat.splitlines()[0].split()
    # Fields: user nice system idle iowait irq softirq steal. `user` includes the time of guests.
    times = [int(field) for field in fields[1:9]]
    return sum(times) - times[3] - times[4], sum(times)


def memory_bytes(meminfo: str) -> Readings:
    """Return the bytes of all memory and of used memory, from the text of /proc/meminfo."""
    sizes = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in meminfo.splitlines())
    }
    return sizes["MemTotal"], sizes["MemTotal"] - sizes["MemAvailable"]


def cpu_groups(lines: Iterable[str]) -> Iterator[Path]:
    """Yield the groups that may limit processors, from the lines of /proc/self/cgroup."""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            # Version 2: all controllers have the same groups.
            yield Path(path.lstrip("/"))
        elif "cpu" in controllers.split(","):
            yield Path(controllers) / path.lstrip("/")


def throttled_periods(stat: str) -> Readings:
    """Return all periods and the throttled ones from the text of cpu.stat; may raise KeyError."""
    fields = dict(line.split() for line in stat.splitlines())
    return int(fields["nr_periods"]), int(fields["nr_throttled"])


def utilization(before: Readings, now: Readings) -> float:
    """Return the share of the time between two readings during which processors were busy."""
    busy, total = now[0] - before[0], now[1] - before[1]
    return min(1.0, max(0.0, busy / total)) if total > 0 else 0.0


def gpu_usage(nvml: Any, uuid: str) -> pb.GpuUsage:
    """Return the usage of one GPU. NVML does not have all values for every GPU and MIG slice."""
    usage = pb.GpuUsage(uuid=uuid)

    def query(function: Callable[[Any], Any]) -> Any:
        try:
            return function(handle)
        except nvml.NVMLError:
            return None

    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    except nvml.NVMLError:
        return usage
    rates, memory = query(nvml.nvmlDeviceGetUtilizationRates), query(nvml.nvmlDeviceGetMemoryInfo)
    if rates is not None:
        usage.utilization = rates.gpu / 100
    if memory is not None:
        usage.memory_total_bytes, usage.memory_used_bytes = memory.total, memory.used
    # NVML's values are in milliwatts and millijoules.
    usage.power_usage_watts = (query(nvml.nvmlDeviceGetPowerUsage) or 0) / 1000
    usage.power_limit_watts = (query(nvml.nvmlDeviceGetPowerManagementLimit) or 0) / 1000
    usage.energy_joules = (query(nvml.nvmlDeviceGetTotalEnergyConsumption) or 0) / 1000
    return usage


def write_metrics(
    page: Page,
    joined: bool,
    instances: Iterable[Instance],
    ended_batches: Counter[tuple[str, int]],
) -> None:
    """Write the executor's own series."""
    page.add_value(metrics.EXECUTOR_JOINED, joined)
    counts: Counter[tuple[str, int]] = Counter()
    batches = ended_batches.copy()
    for instance in instances:
        counts[instance.version] += 1
        batches[instance.version] += instance.batches
    for metric, values in (
        (metrics.EXECUTOR_INSTANCES, counts),
        (metrics.EXECUTOR_BATCHES, batches),
    ):
        for (model, version), count in values.items():
            page.add_value(metric, count, {"model": model, "version": str(version)})
