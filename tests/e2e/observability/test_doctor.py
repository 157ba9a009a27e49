"""`nereid doctor` on real meshes: each cause is planted under load, and found first."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from nereid_explain import command as explain
from nereid_explain import doctor
from tests.support.console.console_client import console
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.e2e_models import save_echo, save_multiplier

pytestmark = pytest.mark.slow

_TENSORS = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
_MODEL = """
import time
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.next_s = {first_s}
    def execute(self, requests):
        time.sleep(self.next_s)
        self.next_s = {each_s}
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())])
            for r in requests
        ]
"""
_ONE = "instance_group [{ count: 1 kind: KIND_CPU }]\n"
_TWO = "instance_group [{ count: 2 kind: KIND_CPU }]\n"
_PADDED = """
max_batch_size: 8
dynamic_batching { }
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
parameters { key: "padding" value { string_value: "x[0] -> y[0]: 32768" } }
"""
_DELAY = "dynamic_batching { max_queue_delay_microseconds: 100000 }\n"
# Name: the configuration, seconds of the first execution and of others, clients.
_MODELS = {
    "unbatched": ("max_batch_size: 8\n" + _ONE, 0.05, 0.05, 8),
    "alone": (_ONE, 0.05, 0.05, 4),
    "delayed": ("max_batch_size: 8\n" + _DELAY + _ONE, 0.005, 0.005, 2),
    "cold": ("max_batch_size: 8\ndynamic_batching { }\n" + _TWO, 0.5, 0.02, 1),
    "cached": ("max_batch_size: 8\nresponse_cache { enable: true }\n" + _TWO, 0.02, 0.02, 2),
    "healthy": ("max_batch_size: 8\ndynamic_batching { }\n" + _TWO, 0.02, 0.02, 2),
}
_NUMBERS = itertools.count()


def _add_python(root: Path, name: str, config: str, first_s: float, each_s: float) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(_TENSORS + config)
    (root / name / "1" / "model.py").write_text(_MODEL.format(first_s=first_s, each_s=each_s))


def _add_sines(root: Path, name: str, config: str) -> None:
    """y is the sine of the sine and so on of x, which takes time for each element."""
    steps = ["x", *(f"s{number}" for number in range(30)), "y"]
    nodes = [helper.make_node("Sin", [one], [other]) for one, other in pairwise(steps)]
    tensors = [
        helper.make_tensor_value_info(each, TensorProto.FLOAT, ["rows", "columns"]) for each in "xy"
    ]
    graph = helper.make_graph(nodes, "sines", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (root / name / "1").mkdir(parents=True)
    onnx.save(model, root / name / "1" / "model.onnx")
    (root / name / "config.pbtxt").write_text(config)


def _body(name: str, columns: int, batches: bool) -> bytes:
    shape = [1, columns] if batches else [columns]
    data = [float(next(_NUMBERS))] * columns
    tensor = {"name": name, "datatype": "FP32", "shape": shape, "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


@contextlib.contextmanager
def _clients(
    mesh: Mesh, model: str, count: int, body: Callable[[], bytes], pause_s: float = 0.0
) -> Iterator[None]:
    """So many clients that send a request after each response, or after a pause."""
    ended = threading.Event()
    served = threading.Semaphore(0)

    def run() -> None:
        connection = http.client.HTTPConnection(mesh.http, timeout=60)
        with (
            contextlib.closing(connection),
            contextlib.suppress(OSError, http.client.HTTPException),
        ):
            while not ended.wait(pause_s):
                connection.request("POST", f"/v2/models/{model}/infer", body())
                connection.getresponse().read()
                served.release()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            assert served.acquire(timeout=30)
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _diagnosed(
    mesh: Mesh, capsys: pytest.CaptureFixture[str], *flags: str, seconds: float = 3
) -> tuple[int, dict[str, list[str]]]:
    """Return the exit code, and the codes of each model's diagnoses in their order."""
    metrics = f"--metrics-url=127.0.0.1:{mesh.metrics_port}"
    at = f"-u={mesh.http}", metrics, f"--seconds={seconds}", "--json"
    code = doctor.main([*at, *flags])
    document = json.loads(capsys.readouterr().out)
    found: dict[str, list[str]] = {}
    for version in document["versions"]:
        found.setdefault(version["model"], []).extend(
            diagnosis["code"] for diagnosis in version["diagnoses"]
        )
    return code, found


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("doctor")
    for name, (config, first_s, each_s, _) in _MODELS.items():
        _add_python(root / "models", name, config, first_s, each_s)
    _add_sines(root / "models", "padded", _PADDED)
    save_echo(root / "models", "echo", "dynamic_batching { }\n")
    flags = "--cache-config=local,size=1000000", "--console"
    with running(root / "models", root / "log", *flags) as started:
        yield started


def test_causes_of_configurations(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        for name, (config, _, _, count) in _MODELS.items():
            body = partial(_body, "x", 8, batches="max_batch_size" in config)
            stack.enter_context(_clients(mesh, name, count, body))
        stack.enter_context(_clients(mesh, "padded", 1, lambda: _body("x", 8, batches=True)))
        client = stack.enter_context(console(mesh.http, "?model=unbatched"))
        code, found = _diagnosed(mesh, capsys)
        shown = client.until(lambda facts: facts["details"]["diagnoses"].get("1"))
        metrics = f"--metrics-url=127.0.0.1:{mesh.metrics_port}"
        explain.main(["-m=unbatched", f"-u={mesh.http}", metrics, "--seconds=1"])
        assert "dynamic_batching { }" in capsys.readouterr().out
    assert shown[0]["code"] == "no-batcher"
    assert code == 1
    assert found.pop("healthy") == []
    assert found.pop("echo") == []
    first = {model: codes[:1] for model, codes in found.items()}
    assert first == {
        "unbatched": ["no-batcher"],
        "alone": ["few-instances"],
        "delayed": ["long-delay"],
        "cold": ["no-warm-up"],
        "cached": ["useless-cache"],
        "padded": ["padding-waste"],
    }


def test_large_json(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    text = _body("INPUT0", 20_000, batches=True)
    with _clients(mesh, "echo", 2, lambda: text):
        code, found = _diagnosed(mesh, capsys, "-m=echo")
    assert (code, found["echo"][:1]) == (1, ["large-json"])


def test_a_slow_client(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    text = _body("INPUT0", 8, batches=True)
    with _clients(mesh, "echo", 1, lambda: text, pause_s=0.005):
        code, found = _diagnosed(mesh, capsys, "-m=echo")
    assert (code, found) == (1, {"echo": ["slow-client"]})


def test_an_idle_mesh(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = _diagnosed(mesh, capsys, seconds=0.5)
    assert code == 0
    assert set(found) == {*_MODELS, "echo", "padded"}
    assert not any(found.values())


def test_a_lost_executor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _add_python(tmp_path / "models", "m", _ONE, 0.01, 0.01)
    with (
        running(tmp_path / "models", tmp_path / "log") as mesh,
        _clients(mesh, "m", 2, lambda: _body("x", 8, batches=False)),
    ):
        lost = threading.Timer(0.3, mesh.kill, ["nereid_executor"])
        lost.start()
        code, found = _diagnosed(mesh, capsys, seconds=1)
        lost.join()
    assert (code, found["m"][:1]) == (1, ["executor-lost"])


def test_too_little_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "other"):
        _add_python(tmp_path / "models", name, _ONE, 0.01, 0.01)
        source = tmp_path / "models" / name / "1" / "model.py"
        source.write_text(
            source.read_text().replace(
                "self.next_s = 0.01\n    def",
                "self.next_s = 0.01\n        self.weights = bytearray(300 << 20)\n    def",
            )
        )
    flags = "--lazy-loading", "--model-memory-budget=500MiB"
    with running(tmp_path / "models", tmp_path / "log", *flags) as mesh:
        names = itertools.cycle(("one", "other"))

        def make_way() -> bool:
            # On a busy machine one load may outlast what the command looks at.
            code, found = _diagnosed(mesh, capsys, seconds=4)
            return code == 1 and {each for codes in found.values() for each in codes[:1]} == {
                "memory"
            }

        with _alternating(mesh, names):
            until(make_way, "the models to make way for each other", 60)


@contextlib.contextmanager
def _alternating(mesh: Mesh, names: Iterator[str]) -> Iterator[None]:
    ended = threading.Event()
    served = threading.Semaphore(0)

    def run() -> None:
        for name in names:
            if ended.is_set():
                return
            path = f"/v2/models/{name}/infer"
            status, reply = mesh.get(path, "POST", _body("x", 8, batches=False))
            assert status == 200, reply
            served.release()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(2):
            assert served.acquire(timeout=60)
        yield
    finally:
        ended.set()
        thread.join()


_GROUPS = Path("/sys/fs/cgroup/cpu")


@pytest.fixture
def limited_group() -> Iterator[Path]:
    """A control group of version 1 with three tenths of a processor, where one may be made."""
    group = _GROUPS / f"nereid-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("30000")
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip("no control group of processors can be made")
    yield group
    for pid in (group / "cgroup.procs").read_text().split():
        (_GROUPS / "cgroup.procs").write_text(pid)
    until(lambda: not (group / "cgroup.procs").read_text(), "the group to be empty")
    group.rmdir()


def test_a_throttled_executor(
    tmp_path: Path, limited_group: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_multiplier(tmp_path / "models", "m", 3, _ONE)
    tensor = {"name": "I", "datatype": "INT64", "shape": [1], "data": [1]}
    text = json.dumps({"inputs": [tensor]}).encode()
    with running(tmp_path / "models", tmp_path / "log") as mesh:
        for pid in mesh.children("nereid_executor"):
            (limited_group / "cgroup.procs").write_text(str(pid))
        with _clients(mesh, "m", 2, lambda: text):
            page = 'nereid_executor_cpu_periods_total{executor="executor-0"}'
            until(lambda: page in mesh.metrics(), "a report of the executor's usage")
            code, found = _diagnosed(mesh, capsys, seconds=5)
    assert (code, found["m"][:1]) == (1, ["throttled-cpu"])


def test_a_saturated_scheduler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_echo(tmp_path / "models", "echo", "dynamic_batching { }\n")
    with running(tmp_path / "models", tmp_path / "log") as mesh:
        argv = [sys.executable, "-m", "nereid", "perf", "-m=echo", f"-u={mesh.http}"]
        argv += ["--shape=INPUT0:8", "--concurrency-range=64", "--measurement-interval=60000"]
        with ExitStack() as stack:
            # One load generator may be slower than the scheduler.
            for _ in range(2):
                load = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                stack.enter_context(load)
                stack.callback(load.terminate)
            until(lambda: mesh.counts("echo")["success"] > 1000, "the load")
            # Where others use the processors as well, the load varies.
            until(
                lambda: (
                    _diagnosed(mesh, capsys, seconds=1) == (1, {"echo": ["scheduler-saturated"]})
                ),
                "the scheduler to be saturated",
            )
