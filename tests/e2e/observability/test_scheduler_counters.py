"""Counters that were shown do not fall when a scheduler is killed, or when models move."""

import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nereid_scheduler.control.shards.members.ownership import owner_of
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.e2e_models import save_scaler

pytestmark = pytest.mark.slow

SCHEDULER = "nereid_scheduler"
NAMES = ("scheduler-0", "scheduler-1")
_CLIENTS = 4
_CONFIG = """
max_batch_size: 16
input { name: "INPUT0" data_type: TYPE_FP32 dims: [8] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [8] }
dynamic_batching {}
"""
_ENSEMBLE = """
platform: "ensemble"
max_batch_size: 16
input { name: "INPUT0" data_type: TYPE_FP32 dims: [8] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [8] }
ensemble_scheduling {
  step { model_name: "times_2" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
}
"""
_MODELS = ("times_2", "times_5", "times_7", "same")
_SERIES = re.compile(r"^(\w+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)
# Of a gateway's process, which nobody kills here, and of a scheduler's page alone.
_OF_PROCESSES = ("process_", "python_")
# They begin anew with another scheduler.
_OF_SCHEDULERS = re.compile(r"\w+_duration_histogram_us|nereid_scheduler_busy_seconds_total")


def save_models(root: Path) -> Path:
    for name in _MODELS[:-1]:
        save_scaler(root, name, int(name[-1]), _CONFIG)
    (root / "same" / "1").mkdir(parents=True)
    (root / "same" / "config.pbtxt").write_text(_ENSEMBLE)
    return root


def infer(mesh: Mesh, model: str) -> int:
    tensor: dict[str, Any] = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 8]}
    body = json.dumps({"inputs": [tensor | {"data": [1.0] * 8}]}).encode()
    return mesh.get(f"/v2/models/{model}/infer", "POST", body)[0]


def counters(mesh: Mesh) -> dict[str, float]:
    """All that the page and the statistics count, by series; empty while they are not whole."""
    page = mesh.metrics()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)", page, re.MULTILINE))
    found: dict[str, float] = {}
    for name, value in _SERIES.findall(page):
        family = re.sub(r"_(bucket|sum|count)$", "", name.partition("{")[0])
        kind = kinds.get(name.partition("{")[0]) or kinds.get(family)
        is_count = kind in {"counter", "histogram"} or (
            kind == "summary" and "quantile=" not in name
        )
        is_kept = not name.startswith(_OF_PROCESSES) and not _OF_SCHEDULERS.match(name)
        if is_count and is_kept:
            found[name] = float(value)
    status, body = mesh.get("/v2/models/stats")
    if status == 200:
        for model in json.loads(body)["model_stats"]:
            _flatten(f"stats/{model['name']}", model, found)
    return found


def _flatten(path: str, value: object, found: dict[str, float]) -> None:
    if isinstance(value, dict):
        for name, each in value.items():
            _flatten(f"{path}/{name}", each, found)
    elif isinstance(value, list):
        for each in value:
            _flatten(f"{path}/{each['batch_size']}", each, found)
    elif isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
        found[path] = float(value)


class Watch:
    """What was shown last of each counter."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self.shown: dict[str, float] = {}

    def look(self) -> dict[str, float]:
        now = counters(self._mesh)
        fallen = {
            name: (self.shown[name], value)
            for name, value in now.items()
            if value < self.shown.get(name, 0)
        }
        assert not fallen
        self.shown |= now
        return now

    def whole(self) -> bool:
        """Look; whether all that was ever shown is shown."""
        return self.look().keys() >= self.shown.keys()

    def successes(self) -> dict[str, float]:
        """By model, by the statistics."""
        # A model that moves is shown by nobody for a moment.
        until(self.whole, "all counters")
        return {
            model: self.shown[f"stats/{model}/inference_stats/success/count"] for model in _MODELS
        }

    def successes_of_page(self) -> dict[str, float]:
        """By model, on the last page."""
        name = 'nv_inference_request_success{{model="{}",version="1"}}'
        return {model: self.shown[name.format(model)] for model in _MODELS}


@contextmanager
def load(mesh: Mesh) -> Iterator[Counter[str]]:
    """Requests to all models meanwhile; how many were sent."""
    sent: Counter[str] = Counter()
    ended = threading.Event()

    def ask(model: str) -> None:
        while not ended.is_set():
            sent[model] += 1
            assert infer(mesh, model) == 200

    threads = [threading.Thread(target=ask, args=(_MODELS[each],)) for each in range(_CLIENTS)]
    for each in threads:
        each.start()
    try:
        yield sent
    finally:
        ended.set()
        for each in threads:
            each.join()


def send_more(mesh: Mesh, watch: Watch) -> None:
    """Of all that is sent now each counts once."""
    before = watch.successes()
    for model in _MODELS:
        for _ in range(3):
            assert infer(mesh, model) == 200
    # The ensemble has a step of the first one.
    more = dict.fromkeys(_MODELS, 3) | {"times_2": 6}
    assert watch.successes() == {model: before[model] + more[model] for model in _MODELS}
    assert watch.successes_of_page() == watch.successes()


def kill_under_load(mesh: Mesh, watch: Watch, pid: int) -> None:
    before = watch.successes()
    with load(mesh) as sent:
        until(lambda: min(sent[model] for model in _MODELS) > 20, "requests")
        shown = watch.successes()
        os.kill(pid, signal.SIGKILL)
        await_next(mesh, watch, pid)
        again = sent.copy()
        until(lambda: min((sent - again)[model] for model in _MODELS) > 20, "requests")
    until(lambda: mesh.get("/v2/health/ready")[0] == 200, "a ready server")
    until(watch.whole, "all counters")
    after = watch.successes()
    sent["times_2"] += sent["same"]
    for model in _MODELS:
        # What is in flight may run twice.
        most = before[model] + sent[model] + 2 * _CLIENTS
        assert shown[model] + 20 <= after[model] <= most, model
    send_more(mesh, watch)


def end_without_loss(mesh: Mesh, watch: Watch, pid: int) -> None:
    """It says at its end what it has counted since it was last asked."""
    before = watch.successes()
    for model in _MODELS:
        assert infer(mesh, model) == 200
    os.kill(pid, signal.SIGTERM)
    await_next(mesh, watch, pid)
    more = dict.fromkeys(_MODELS, 1) | {"times_2": 2}
    assert watch.successes() == {model: before[model] + more[model] for model in _MODELS}


def await_next(mesh: Mesh, watch: Watch, pid: int) -> None:
    """Until another process has what this one had; looks all the time."""
    until(lambda: watch.look() and pid not in mesh.children(SCHEDULER), "its end")
    until(lambda: watch.whole() and responds(mesh), "all counters")


def process_of(mesh: Mesh, name: str) -> int:
    (pid,) = (
        pid
        for pid in mesh.children(SCHEDULER)
        if f"--scheduler-name={name}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return pid


def has_both(mesh: Mesh) -> bool:
    linked = re.findall(r"^nereid_gateway_linked\S* (\d+)$", mesh.metrics(), re.MULTILINE)
    return linked == ["2", "2"] and mesh.get("/v2/health/ready")[0] == 200


def test_a_scheduler_that_is_killed(tmp_path: Path) -> None:
    repository = save_models(tmp_path / "models")
    flags = (
        "--join=none",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--metrics-config=histogram_latencies=true",
        "--metrics-config=summary_latencies=true",
    )
    with running(repository, tmp_path / "log", *flags) as mesh:
        watch = Watch(mesh)
        send_more(mesh, watch)
        kill_under_load(mesh, watch, mesh.children(SCHEDULER)[0])
        end_without_loss(mesh, watch, mesh.children(SCHEDULER)[0])
        # The next gateway has it from the scheduler.
        shown = watch.successes()
        pid = mesh.kill("nereid_gateway")
        until(lambda: pid not in mesh.children("nereid_gateway"), "its end")
        until(lambda: responds(mesh), "the next gateway")
        after = Watch(mesh)
        until(lambda: after.look().keys() >= {f"stats/{each}/version" for each in _MODELS}, "all")
        assert after.successes() == shown
        # What is loaded anew counts anew, as on Triton, and on after a kill.
        for what in ("unload", "load"):
            assert mesh.get(f"/v2/repository/models/times_5/{what}", "POST")[0] == 200
        assert mesh.counts("times_5")["success"] == 0
        for _ in range(3):
            assert infer(mesh, "times_5") == 200
        assert mesh.counts("times_5")["success"] == 3
        pid = mesh.kill(SCHEDULER)
        until(lambda: infer(mesh, "times_5") == 200, "a response")
        assert mesh.counts("times_5")["success"] == 4


def responds(mesh: Mesh) -> bool:
    try:
        return mesh.get("/v2/health/ready")[0] == 200
    except OSError:
        return False


def test_models_that_move(tmp_path: Path) -> None:
    repository = save_models(tmp_path / "models")
    assert {owner_of(model, NAMES) for model in _MODELS[:-1]} == set(NAMES)
    # Clients cannot choose the gateway.
    flags = ("--schedulers=2", "--gateways=2")
    with running(repository, tmp_path / "log", *flags, executors=2) as mesh:
        until(lambda: has_both(mesh), "both schedulers")
        watch = Watch(mesh)
        send_more(mesh, watch)
        for victim, end in zip(NAMES, (kill_under_load, end_without_loss), strict=True):
            end(mesh, watch, process_of(mesh, victim))
            # Back to the one that was away.
            until(lambda: watch.look() and has_both(mesh), "both schedulers")
            until(watch.whole, "all counters")
            send_more(mesh, watch)
