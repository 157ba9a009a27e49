"""The devices that an executor offers, with an NVML that the test scripts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nereid.pb import nereid_pb2 as pb
from nereid_executor.core import devices
from nereid_executor.core.devices import Gpu, select_visible
from tests.support.executor.fake_nvml import Nvml

WHOLE = [Gpu(f"GPU-{letter}aa", "H", 80, number) for number, letter in enumerate("xyz")]
SLICES = [Gpu(f"MIG-{letter}", "H 1g", 10, 0, is_slice=True) for letter in "pq"]


@pytest.mark.parametrize(
    ("found", "selection", "expected"),
    [
        (WHOLE, None, WHOLE),
        (WHOLE, "", []),
        (WHOLE, "2,0", [WHOLE[2], WHOLE[0]]),
        (WHOLE, " 1 ", [WHOLE[1]]),
        # CUDA stops at the first that it does not know, or that was there before.
        (WHOLE, "1,7,0", [WHOLE[1]]),
        (WHOLE, "-1,0", []),
        (WHOLE, "1,1,0", [WHOLE[1]]),
        (WHOLE, "GPU-z", [WHOLE[2]]),
        (WHOLE, "GPU-", []),
        # One process, one slice.
        ([*SLICES, WHOLE[1]], None, [SLICES[0]]),
        (SLICES, "MIG-q", [SLICES[1]]),
        (SLICES, "MIG-q,MIG-p", [SLICES[1]]),
        (SLICES, "0", [SLICES[0]]),
    ],
)
def test_cudas_selection(found: list[Gpu], selection: str | None, expected: list[Gpu]) -> None:
    assert select_visible(found, selection) == expected


def test_gpus_and_slices_as_nvml_reports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    nvml.install(monkeypatch)
    assert [(gpu.id, gpu.uuid) for gpu in devices.gpus("1,2")] == [(0, "U-1"), (1, "U-2")]
    assert [gpu.uuid for gpu in devices.gpus("U-0.2")] == ["U-0.2"]
    assert devices.gpus(None)[0] == pb.Device(
        kind=pb.Device.GPU, id=0, uuid="U-0.0", name="H", memory_bytes=80
    )
    assert not nvml.running


def test_the_memory_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml().install(monkeypatch)
    assert devices.used_bytes(0, "1,2") == 30
    # It is lost, and there is none.
    assert devices.used_bytes(1, "1,2") is None
    assert devices.used_bytes(2, "1,2") is None


def test_no_gpus_where_nvml_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml(broken=True).install(monkeypatch)
    assert devices.gpus(None) == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert devices.gpus(None) == []


def test_the_cpu_is_always_there(tmp_path: Path) -> None:
    cpu = devices.cpu()
    assert cpu.kind == pb.Device.CPU
    assert cpu.memory_bytes > 1 << 20
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Fast One\n")
    assert devices.cpu_name(tmp_path / "cpuinfo") == "Fast One"
    assert devices.cpu_name(tmp_path / "none") == "CPU"


def test_the_hosts_identity_is_stable() -> None:
    assert devices.host_identity() == devices.host_identity() != ""
