"""The machine's usage, from /proc and NVML."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nereid_executor.session.metrics import (
    UsageReader,
    gpu_usage,
    memory_bytes,
    processor_times,
    utilization,
)
from tests.support.executor.fake_nvml import Nvml

STAT = "cpu  100 5 50 800 40 3 2 0 7 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n"
MEMINFO = "MemTotal:       1000 kB\nMemFree:  100 kB\nMemAvailable:    400 kB\nHugePages_Total: 0\n"


def test_processors_are_busy_unless_idle_or_waiting_for_a_disk() -> None:
    assert processor_times(STAT) == (160, 1000)


def test_utilization_is_the_share_since_the_last_look() -> None:
    assert utilization((100, 1000), (150, 1100)) == 0.5
    assert utilization((100, 1000), (100, 1000)) == 0.0
    # A container that moved, or a counter that ran back.
    assert utilization((100, 1000), (50, 1100)) == 0.0


def test_memory_in_use_is_what_is_not_available() -> None:
    assert memory_bytes(MEMINFO) == (1024000, 614400)


def test_a_reading(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "meminfo").write_text(MEMINFO)
    reader = UsageReader([], tmp_path)
    (tmp_path / "stat").write_text(STAT.replace("cpu  100 5 50 800", "cpu  130 5 50 870"))
    usage = reader.read()
    assert round(usage.cpu_utilization, 6) == 0.3
    assert usage.memory_total_bytes == 1024000


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    usage = UsageReader([], tmp_path).read()
    assert (usage.cpu_utilization, usage.memory_total_bytes) == (0, 0)


def test_a_gpu() -> None:
    usage = gpu_usage(Nvml(), "GPU-1")
    assert (usage.uuid, usage.utilization) == ("GPU-1", 0.25)
    assert (usage.memory_total_bytes, usage.memory_used_bytes) == (80, 30)
    assert (usage.power_usage_watts, usage.power_limit_watts) == (300, 700)
    assert usage.energy_joules == 12.5


def test_a_slice_reports_what_it_has() -> None:
    usage = gpu_usage(Nvml(), "MIG-1")
    assert (usage.memory_total_bytes, usage.utilization, usage.energy_joules) == (80, 0, 0)


def test_a_gpu_that_was_removed() -> None:
    assert gpu_usage(Nvml(), "gone").memory_total_bytes == 0


def test_gpus_are_read_with_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml().install(monkeypatch)
    reader = UsageReader(["GPU-1", "GPU-2"], tmp_path)
    assert [gpu.uuid for gpu in reader.read().gpus] == ["GPU-1", "GPU-2"]


def test_without_nvml_it_is_imported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reader = UsageReader(["GPU-1"], tmp_path)
    assert not reader.read().gpus
    assert not reader.read().gpus
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("groups", "place"),
    [
        ("9:name=systemd:/\n4:cpu,cpuacct:/pod/a\n0::/\n", "cpu,cpuacct/pod/a"),
        ("4:cpuacct,cpu:/pod/a\n", "cpuacct,cpu"),
        ("0::/pod/a\n", "pod/a"),
        ("0::/pod/a\n", "."),
    ],
    ids=["version 1", "version 1 in a container", "version 2", "version 2 in a container"],
)
def test_a_cpu_limit_is_read_from_the_control_group(
    tmp_path: Path, groups: str, place: str
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(groups)
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / place / "cpu.stat").write_text("nr_periods 40\nnr_throttled 30\nthrottled_usec 5\n")
    usage = UsageReader([], tmp_path, tmp_path).read()
    assert (usage.cpu_periods, usage.throttled_cpu_periods) == (40, 30)


@pytest.mark.parametrize("groups", ["0::/\n", "3:memory:/\n"], ids=["no limit", "no such group"])
def test_without_a_cpu_limit_there_are_no_periods(tmp_path: Path, groups: str) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(groups)
    (tmp_path / "cpu.stat").write_text("usage_usec 5\n")
    usage = UsageReader([], tmp_path, tmp_path).read()
    assert (usage.cpu_periods, usage.throttled_cpu_periods) == (0, 0)
