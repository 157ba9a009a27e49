"""The processor cores that an executor's models may use, and each instance's share of them.

By themselves model runtimes start a thread for each core of the machine, even if a container may
use two of sixty-four, and do so again for every instance.
"""

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

    Hardware threads of one core count once: they share what matrix products need. A cgroup's quota
    is rounded down, since a process that exceeds it is stopped, with all its threads, for the rest
    of the period.

    root: the directory with /proc and /sys. processors: those that the process may run on, by
    default the ones of its affinity.
    """
    if processors is None:
        processors = os.sched_getaffinity(0)
    cores = len({_read(root / _TOPOLOGY.format(number)) or str(number) for number in processors})
    return max(1, min([cores, *map(int, _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quotas, in cores, of the process's cgroup and of the cgroups around it."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, read = root / "sys/fs/cgroup", _quota_v2
        elif "cpu" in controllers.split(","):
            mount, read = root / "sys/fs/cgroup" / controllers, _quota_v1
        else:
            continue
        # A container sees its own cgroup as the root of the mount, but may get the path on the
        # host.
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
    """Return the text of a file without its final newline, or an empty one if it is unreadable."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def threads_per_instance(cores: int, config: model_config_pb2.ModelConfig) -> int:
    """Return the number of threads for the operators of one instance, at least 1.

    All instances together have no more threads than there are cores. Only instances that the
    configuration asks for divide the cores: if it leaves their number open, and two are made, a
    lone request may use all cores.
    """
    instances = sum(
        max(1, group.count) * max(1, len(group.gpus)) for group in config.instance_group
    )
    return max(1, cores // max(1, instances))
