"""Counters that were shown do not fall when what has counted is killed."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.mesh.separate_services import workers

pytestmark = pytest.mark.slow

_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily("seen_total", "Requests seen", pb_utils.MetricFamily.COUNTER)
        self.seen = family.Metric(labels={"model": "counting"})

    def execute(self, requests):
        self.seen.increment(len(requests))
        inputs = [pb_utils.get_input_tensor_by_name(each, "X") for each in requests]
        outputs = [pb_utils.Tensor("Y", each.as_numpy()) for each in inputs]
        return [pb_utils.InferenceResponse([each]) for each in outputs]
"""
_CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [1] }
output { name: "Y" data_type: TYPE_FP32 dims: [1] }
response_cache { enable: true }
"""
_SERIES = re.compile(r"^(\w+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)
# Of a process: its next one starts anew, which process_start_time_seconds says.
_OF_PROCESSES = ("process_", "python_")
# Gauges as on Triton, which count all the same.
_COUNTING = re.compile(r"nv_cache_num_(lookups|hits|misses)")


def counters(mesh: Mesh) -> dict[str, float]:
    page = mesh.metrics()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)", page, re.MULTILINE))
    return {
        name: float(value)
        for name, value in _SERIES.findall(page)
        if (kinds.get(name.partition("{")[0]) == "counter" or _COUNTING.match(name))
        and not name.startswith(_OF_PROCESSES)
    }


def ask_model(mesh: Mesh, value: float) -> int:
    tensor: dict[str, Any] = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    return mesh.get("/v2/models/counting/infer", "POST", json.dumps({"inputs": [tensor]}).encode())[
        0
    ]


def kill(mesh: Mesh, module: str, *, of_worker: bool) -> None:
    """Kill one child that runs this module, or its worker, and wait for the next one."""
    before = mesh.children(module)
    if of_worker:
        old = workers(before[0])
        os.kill(old[0], signal.SIGKILL)
        until(lambda: set(workers(before[0])) - set(old), "another worker")
    else:
        killed = mesh.kill(module)
        until(lambda: len({*mesh.children(module)} - {killed}) == len(before), "another one")


def await_series(mesh: Mesh, shown: dict[str, float]) -> None:
    """Of a gateway that does not serve its page yet the series are not there."""
    until(lambda: shown.keys() <= counters(mesh).keys(), "the series of all processes")


def test_counters_do_not_fall_with_what_is_killed(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    (repository / "counting" / "1").mkdir(parents=True)
    (repository / "counting" / "1" / "model.py").write_text(_MODEL)
    (repository / "counting" / "config.pbtxt").write_text(_CONFIG)
    flags = ("--join=none", "--gateways=2", "--cache-config=local,size=1048576")
    with running(repository, tmp_path / "log", *flags, executors=2) as mesh:
        for number in range(40):
            assert ask_model(mesh, number // 2) == 200

        def whole(page: dict[str, float]) -> bool:
            """Workers and caches report what they count a little later.

            A hit whose response comes after the lookup's time-out is executed, too.
            """
            seen = page.get('seen_total{model="counting"}', 0)
            return seen + page.get("nv_cache_num_hits", 0) >= 40

        until(lambda: whole(counters(mesh)), "all reports")
        stats = mesh.counts("counting")
        shown = counters(mesh)
        for what in ("worker", "executor", "gateway", "cache"):
            module = f"nereid_{'executor' if what == 'worker' else what}"
            kill(mesh, module, of_worker=what == "worker")
            until(lambda: ask_model(mesh, 1000.0) == 200, "a response")
            await_series(mesh, shown)
            now = counters(mesh)
            fallen = {
                name: (value, now[name]) for name, value in shown.items() if now[name] < value
            }
            assert not fallen, what
            shown = now
        after = mesh.counts("counting")
        assert all(after[name] >= count for name, count in stats.items())
