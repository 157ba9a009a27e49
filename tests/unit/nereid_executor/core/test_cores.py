"""How many cores an executor's models may use, from /proc and /sys as a test writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from google.protobuf import text_format

from nereid.pb import model_config_pb2
from nereid_executor.core.cores import threads_per_instance, usable_cores

V2 = "sys/fs/cgroup/cpu.max"
CPU = "sys/fs/cgroup/cpu,cpuacct"
ROOT = {"proc/self/cgroup": "0::/"}
SIBLINGS = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, 8, id="nothing known"),
        pytest.param({"proc/self/cgroup": "0::/a/b"}, 8, id="no limits"),
        pytest.param(ROOT | {V2: "max 100000"}, 8, id="max"),
        pytest.param(ROOT | {V2: "250000 100000"}, 2, id="v2"),
        pytest.param(ROOT | {V2: "50000 100000"}, 1, id="half"),
        # The smallest of the groups around it counts.
        pytest.param(
            {
                "proc/self/cgroup": "0::/pod/one",
                "sys/fs/cgroup/pod/one/cpu.max": "600000 100000",
                "sys/fs/cgroup/pod/cpu.max": "300000 100000",
                V2: "max 100000",
            },
            3,
            id="nested",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/host/path\n1:name=systemd:/",
                f"{CPU}/cpu.cfs_quota_us": "400000",
                f"{CPU}/cpu.cfs_period_us": "100000",
            },
            4,
            id="v1, a path of the host",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/",
                f"{CPU}/cpu.cfs_quota_us": "-1",
                f"{CPU}/cpu.cfs_period_us": "100000",
            },
            8,
            id="v1, no limit",
        ),
    ],
)
def test_a_quota_limits_the_cores(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert usable_cores(system(tmp_path, files), range(8)) == expected


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    siblings = {SIBLINGS.format(one): f"{one % 4},{one % 4 + 4}" for one in range(8)}
    root = system(tmp_path, siblings)
    assert usable_cores(root, range(8)) == 4
    assert usable_cores(root, {1, 5, 2}) == 2


def test_of_this_process_there_are_no_more_than_it_may_run_on() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        # Open, so that a lone request has all of them.
        ("", 8),
        ("instance_group { kind: KIND_CPU }", 8),
        ("instance_group { count: 1 }", 8),
        ("instance_group { count: 3 }", 2),
        ("instance_group { count: 3 } instance_group { count: 1 }", 2),
        ("instance_group { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }", 2),
        ("instance_group { count: 9 }", 1),
    ],
)
def test_instances_share_the_cores(groups: str, expected: int) -> None:
    config = text_format.Parse(groups, model_config_pb2.ModelConfig())
    assert threads_per_instance(8, config) == expected
