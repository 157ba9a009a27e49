"""`nereid timeline` of a real mesh: problems that are planted are named, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.console.console_client import console
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.peers.perfetto_traces import query

pytestmark = pytest.mark.slow

_EXECUTOR = "nereid_executor"
# As long as its input says.
_SLEEPER = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(each, "INPUT0").as_numpy() for each in requests]
        time.sleep(max(float(each.ravel()[0]) for each in inputs))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in inputs]
"""
# Its outputs are no arrays yet, but views of one number.
_COPIER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        output = np.broadcast_to(np.float32(1), (1, 4_000_000))
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", output)]) for _ in requests
        ]
"""
_TENSORS = "".join(
    f'{each} {{ name: "{each.upper()}0" data_type: TYPE_FP32 dims: [-1] }}\n'
    for each in ("input", "output")
)
_ONE = "instance_group [{ count: 1 kind: KIND_CPU }]\n"
_BATCHES = f"max_batch_size: 8\ndynamic_batching {{ }}\n{_ONE}"
_DELAYED = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 60000 }\n"
_LIMITED = """\
max_batch_size: 1
instance_group [{ count: 2 kind: KIND_CPU rate_limiter { resources [{ name: "R" count: 1 }] } }]
"""
# About the time of an execution, in seconds.
_SHORT = 0.002
_STALL = 1.5
_LOAD = 0.5


def save(root: Path, name: str, config: str, code: str = "") -> None:
    (root / name / "1").mkdir(parents=True)
    backend = "python" if code else "identity"
    (root / name / "config.pbtxt").write_text(f'backend: "{backend}"\n{_TENSORS}{config}')
    if code:
        (root / name / "1" / "model.py").write_text(code)


@dataclass
class Load:
    """Requests to a mesh, of several clients at a time; sent: how many, by model."""

    mesh: Mesh
    pool: ThreadPoolExecutor
    sent: Counter[str] = field(default_factory=Counter)
    clients: list[Any] = field(default_factory=list)

    def start(self, model: str, values: list[float], clients: int = 2) -> None:
        for client in range(clients):
            self.sent[model] += len(values)
            self.clients.append(self.pool.submit(self._client, model, values, client))

    def _client(self, model: str, values: list[float], client: int) -> None:
        for number, value in enumerate(values):
            tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [value]}
            body = {
                "id": f"{model}-{client}-{number}",
                "inputs": [tensor],
                "parameters": {"binary_data_output": True},
            }
            status, reply = self.mesh.get(
                f"/v2/models/{model}/infer", "POST", json.dumps(body).encode()
            )
            assert status == 200, reply

    def join(self) -> None:
        for each in self.clients:
            each.result()


def timeline(*arguments: str) -> tuple[int, dict[str, Any]]:
    nereid = str(Path(sys.executable).with_name("nereid"))
    done = subprocess.run(
        [nereid, "timeline", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def problems(document: dict[str, Any], planted_ms: float = 0.0) -> list[tuple[str, str]]:
    """Codes, and the models or executors that they are about."""
    return sorted(
        (each["code"], each["figures"].get("model") or each["figures"].get("executor"))
        for each in document["statements"]
        # A loaded machine stalls by itself, though not for so long.
        if each["problem"] and each["figures"].get("stalled_ms", planted_ms) >= planted_ms
    )


@dataclass
class Recorded:
    """What was sent, and the timeline of it."""

    sent: Counter[str]
    code: int
    document: dict[str, Any]
    raw: Path


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A model without a problem, and four with one each."""
    folder = tmp_path_factory.mktemp("timeline")
    models, raw = folder / "models", folder / "raw"
    save(models, "healthy", _BATCHES, _SLEEPER)
    save(models, "stalls", _BATCHES, _SLEEPER)
    save(models, "delays", _DELAYED + _ONE)
    save(models, "copies", _BATCHES, _COPIER)
    save(models, "limited", _LIMITED, _SLEEPER)
    limits = "--rate-limit=execution_count", "--rate-limit-resource=R:1"
    with running(models, folder / "log", *limits) as mesh, ThreadPoolExecutor(16) as pool:
        load = Load(mesh, pool)
        load.start("healthy", [_SHORT] * 100)
        load.start("stalls", [_SHORT] * 80, clients=1)
        load.start("stalls", [*[_SHORT] * 40, _STALL, *[_SHORT] * 40], clients=1)
        load.start("delays", [0.0] * 20)
        load.start("copies", [0.0] * 20)
        load.start("limited", [0.02] * 15, clients=3)
        load.join()
        code, document = timeline(f"--url={mesh.http}", "--last=60s", f"--raw={raw}")
    return Recorded(load.sent, code, document, raw)


def test_planted_problems_are_named_and_nothing_else(planted: Recorded) -> None:
    assert planted.code == 1
    assert problems(planted.document, _STALL * 1000) == [
        ("delay-too-long", "delays"),
        ("rate-limited", "limited"),
        ("slow-copy", "copies"),
        ("stalled-instance", "stalls"),
    ]
    figures = {
        each["code"]: each["figures"]
        for each in planted.document["statements"]
        if each["figures"].get("model") != "healthy"
    }
    assert figures["delay-too-long"]["wait_ms"] > 30
    assert figures["slow-copy"]["copy_ms"] > figures["slow-copy"]["compute_ms"]
    assert figures["requests"]["requests"] == planted.sent.total()
    fills = [each for each in planted.document["statements"] if each["code"] == "batch-fill"]
    sizes = {each["figures"]["model"]: each["figures"]["max_batch_size"] for each in fills}
    assert sizes == {name: 1 if name == "limited" else 8 for name in planted.sent}


def test_the_slowest_request_is_the_one_that_stalled(planted: Recorded) -> None:
    slowest = planted.document["slowest"][0]
    assert slowest["model"] == "stalls"
    steps = {each["step"]: each["ms"] for each in slowest["steps"]}
    assert sum(steps.values()) == pytest.approx(slowest["ms"])
    assert steps["compute"] + steps.get("queue", 0.0) > _STALL * 900


@pytest.mark.parametrize("form", ["perfetto", "chrome"])
def test_a_trace_has_all_requests(planted: Recorded, form: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    code, document = timeline(str(planted.raw), f"--format={form}", "-o", str(trace))
    assert code == 1
    assert problems(document) == problems(planted.document)
    requests, counts, errors, processes = query(
        trace.read_bytes(),
        "select extract_arg(arg_set_id, "
        + ("'debug.model'" if form == "perfetto" else "'args.model'")
        + "), count(*) from slice where name = 'request' group by 1",
        "select name, count(*) from slice where name in ('batch', 'compute') group by name",
        "select name from stats where severity in ('error', 'data_loss') and value > 0",
        "select distinct substr(name, 1, 8) from process where name is not null order by 1",
    )
    assert dict(requests) == planted.sent
    (_, batches), (_, computed) = counts
    assert batches == computed
    assert errors == []
    assert processes == [("executor",), ("gateway ",), ("schedule",)]


def test_a_request_that_waits_for_its_model_to_be_loaded(tmp_path: Path) -> None:
    models = tmp_path / "models"
    loads = f"    def initialize(self, args):\n        time.sleep({_LOAD})\n"
    save(models, "lazy", _BATCHES, _SLEEPER + loads)
    flags = ("--lazy-loading=true",)
    with running(models, tmp_path / "log", *flags) as mesh, ThreadPoolExecutor(1) as pool:
        load = Load(mesh, pool)
        load.start("lazy", [_SHORT], clients=1)
        load.join()
        _, document = timeline(f"--url={mesh.http}", "--last=60s")
    [slowest] = document["slowest"]
    steps = {each["step"]: each["ms"] for each in slowest["steps"]}
    assert sum(steps.values()) == pytest.approx(slowest["ms"])
    assert steps["wait for loading"] >= _LOAD * 1000
    [p99] = [each for each in document["statements"] if each["code"] == "p99"]
    assert p99["figures"]["step"] == "wait for loading"
    assert "(1 request)" in p99["text"]


def test_a_healthy_load_and_then_an_executor_is_killed(tmp_path: Path) -> None:
    models = tmp_path / "models"
    save(models, "healthy", _BATCHES, _SLEEPER)
    with (
        running(models, tmp_path / "log", executors=2) as mesh,
        ThreadPoolExecutor(8) as pool,
    ):
        load = Load(mesh, pool)
        load.start("healthy", [_SHORT] * 100, clients=4)
        load.join()
        code, document = timeline(f"--url={mesh.http}", "--last=60s")
        assert problems(document, 1000) == []
        load.start("healthy", [0.02] * 40, clients=4)
        executed = mesh.counts("healthy")["execution_count"]
        until(lambda: mesh.counts("healthy")["execution_count"] > executed + 5, "executions")
        mesh.kill(_EXECUTOR)
        load.join()
        code, document = timeline(f"--url={mesh.http}", "--last=60s")
    assert code == 1
    ((what, executor),) = problems(document, 1000)
    assert what == "executor-lost"
    assert executor.startswith("executor-")
    figures = {each["code"]: each["figures"] for each in document["statements"]}
    assert figures["requests"]["requests"] == load.sent.total()
    assert figures["executor-lost"]["batches"] <= 2


def test_a_slow_request_of_the_console_is_found_by_its_number(tmp_path: Path) -> None:
    models, raw = tmp_path / "models", tmp_path / "raw"
    save(models, "sleeper", _BATCHES, _SLEEPER)
    save(models, "other", _BATCHES)
    with (
        running(models, tmp_path / "log", "--console") as mesh,
        ThreadPoolExecutor(4) as pool,
        console(mesh.http) as viewer,
    ):
        viewer.read_event()
        load = Load(mesh, pool)
        load.start("sleeper", [_SHORT, _SHORT, 0.2], clients=2)
        load.start("other", [0.0] * 10, clients=1)
        load.join()
        slow = viewer.until(lambda facts: facts["slow_requests"] and facts["slow_requests"][0])
        assert viewer.document["server"]["timeline_seconds"] == 30.0
        number = slow["number"]
        _, document = timeline(f"--url={mesh.http}", f"--request={number}", f"--raw={raw}")
        (found,) = document["slowest"]
        assert (found["model"], found["request_id"]) == ("sleeper", slow["request_id"])
        assert found["ms"] >= slow["duration_us"] / 1000
        (batch,) = [each for each in document["statements"] if each["code"] == "batch"]
        assert batch["figures"]["rows"] == slow["batch_size"]
    # The mesh is gone, but not what it recorded.
    trace = tmp_path / "trace.json"
    timeline(str(raw), f"--request={number}", "--format=chrome", "-o", str(trace))
    events = json.loads(trace.read_bytes())["traceEvents"]
    ids = {each["args"]["request_id"] for each in events if each["name"] == "request"}
    assert slow["request_id"] in ids
    assert not [each for each in ids if each.startswith("other")]
