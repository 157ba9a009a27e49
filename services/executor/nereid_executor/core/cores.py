"""The processor cores that an executor's models may use, and each instance's share of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nereid.pb import model_config_pb2

_SYSTEM: Final = Path("/")
_TOPOLOGY: Final = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def usable_cores(root: Path = _SYSTEM, processors: Iterable[int] | None = None) -> int:
    """Return the number of cores that this process may use at once, at least 1.

    Hardware threads of one core share the units that matrix products need, so they count once. A
    cgroup's quota is rounded down: a process that exceeds it is stopped for the rest of the period.
    root: directory with proc and sys. processors: by default those of the affinity.
    """
    if processors is None:
        processors = os.sched_getaffinity(0)
    cores = len({_read(root / _TOPOLOGY.format(number)) or str(number) for number in processors})
    return max(1, min([cores, *map(int, _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quotas, in cores, of the process's cgroup and of its parent cgroups."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, read = root / "sys/fs/cgroup", _quota_v2
        elif "cpu" in controllers.split(","):
            mount, read = root / "sys/fs/cgroup" / controllers, _quota_v1
        else:
            continue
        # In a container, the cgroup is at the root of the mount, although /proc may name the path
        # on the host.
        group = mount / path.strip("/")
        for directory in (group, *group.parents):
            quota = read(directory)
            if quota is not None:
                yield quota
            if directory == mount:
                break


def _quota_v2(directory: Path) -> float | None:
    limit, _, period = _read(directory / "cpu.max").partition(" ")
    return int(limit) / int(period) if limit.isdecimal() and period else None


def _quota_v1(directory: Path) -> float | None:
    limit = _read(directory / "cpu.cfs_quota_us")
    period = _read(directory / "cpu.cfs_period_us")
    return int(limit) / int(period) if limit.isdecimal() and period else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def threads_per_instance(cores: int, config: model_config_pb2.ModelConfig) -> int:
    """Return the number of threads for the operators of one instance, at least 1.

    The configured instances divide the cores. If their number is left open, each gets threads for
    all cores, so that a lone request can use all of them.
    """
    instances = sum(
        max(1, group.count) * max(1, len(group.gpus)) for group in config.instance_group
    )
    return max(1, cores // max(1, instances))
