"""Gauges of a metrics page."""

import threading
from itertools import count

from nereid.perf.server_stats.gauges import GaugeSampler, page_gauges

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
