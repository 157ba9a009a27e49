"""Gauges of a metrics page."""

import threading
from itertools import count
from types import SimpleNamespace
from typing import Any

from nereid_perf.server_stats.gauges import GaugeSampler, Gpus, page_gauges

# Nobody listens at port 1.
_NOBODY = "http://127.0.0.1:1/metrics"
_PAGE = b"""\
# HELP nv_gpu_utilization GPU utilization rate
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-2"} 0.25
# TYPE nv_inference_count counter
nv_inference_count{model="m",version="1"} 7
# TYPE up gauge
up 1
# TYPE broken gauge
broken what
"""


def test_a_page_has_its_gauges_by_name_with_labels() -> None:
    assert page_gauges(_PAGE) == {
        'nv_gpu_utilization{gpu_uuid="GPU-1"}': 0.5,
        'nv_gpu_utilization{gpu_uuid="GPU-2"}': 0.25,
        "up": 1.0,
    }


def test_a_summary_has_mean_and_largest_of_all_looks() -> None:
    looks, enough = count(1), threading.Event()

    def look() -> dict[str, float]:
        number = next(looks)
        if number > 4:
            enough.set()
            return {}
        return {"each": number, "first": 5.0} if number == 1 else {"each": number}

    with GaugeSampler(_NOBODY, 0.001, look) as sampler:
        assert enough.wait(10)
    assert sampler.summary() == {"each": (2.5, 4), "first": (5.0, 5.0)}


def test_a_page_that_cannot_be_read_is_missing() -> None:
    looked = threading.Event()

    def look() -> dict[str, float]:
        looked.set()
        return {}

    with GaugeSampler(_NOBODY, 0.001, look) as sampler:
        assert looked.wait(10)
    assert sampler.summary() == {}


class _NvmlError(Exception):
    pass


class _Nvml:
    """Two GPUs, of which the second one does not tell its power."""

    NVMLError = _NvmlError

    def __init__(self, *, has_driver: bool = True) -> None:
        self.has_driver = has_driver

    def nvmlInit(self) -> None:  # noqa: N802 (NVML's names)
        self._require_driver()

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._require_driver()
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=40 + device)

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=(device + 1) << 30)

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:  # noqa: N802
        if device:
            raise _NvmlError
        return 71_500

    def _require_driver(self) -> None:
        if not self.has_driver:
            raise _NvmlError


def test_each_gpu_says_what_it_can() -> None:
    nvml = _Nvml()
    gpus = Gpus(nvml)
    assert gpus.gauges() == {
        'gpu_utilization_percent{gpu="0"}': 40.0,
        'gpu_memory_used_mib{gpu="0"}': 1024.0,
        'gpu_power_watts{gpu="0"}': 71.5,
        'gpu_utilization_percent{gpu="1"}': 41.0,
        'gpu_memory_used_mib{gpu="1"}': 2048.0,
    }
    # It may be lost on the way.
    nvml.has_driver = False
    assert gpus.gauges() == {}


def test_without_a_driver_there_are_no_gpus() -> None:
    assert Gpus(_Nvml(has_driver=False)).gauges() == {}
