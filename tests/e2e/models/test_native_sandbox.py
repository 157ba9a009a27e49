"""What native code of a model can do, with --sandbox-models and without, and when it crashes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from nereid_executor.backends.python.sandbox.policy import missing_protection, provided_protection
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import native_models, onnx_models

pytestmark = pytest.mark.slow

# Commands of native_operator.c, which return errno.
PROBES = {
    "weights of another model": "read {neighbour}/1/model.onnx",
    "library of another model": "append {neighbour}/operators.so",
    "modes of another model's files": "chmod {neighbour}/1/model.onnx",
    "own library": "append {own}/operators.so",
    "state": "read {state}",
    "files of the system": "read /etc/shadow",
    "home": "read {home}",
    "environment of the executor": "parent environ",
    "memory of the executor": "parent mem",
    "command line of the executor": "parent cmdline",
    "descriptors of the executor": "parent fd",
    "gateway": "connect 127.0.0.1 {port}",
    "metadata address": "connect 169.254.169.254 80",
    "netlink": "netlink",
    "signals": "signal",
    "limits of the executor": "limit",
    "ptrace": "call {ptrace} 16 -7 0",
    "namespaces": "call {unshare} 268435456 0 0",
    "constructor of the library": "constructor",
}
# As the calls' numbers on x86_64 and aarch64.
NUMBERS = {"x86_64": {"ptrace": 101, "unshare": 272}, "aarch64": {"ptrace": 117, "unshare": 97}}
# ENOENT: in /tmp, which confined models have of their own.
DENIED = {errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT}
CONFIG = f'backend: "onnxruntime" {native_models.CONFIG}'
STATE = "secret"
# Two instances of each of two models.
WORKERS = 4


@pytest.fixture(scope="module", autouse=True)
def _kernel(tmp_path_factory: pytest.TempPathFactory) -> None:
    provided = provided_protection(tmp_path_factory.mktemp("probe"))
    missing = [text for text in missing_protection(provided) if "root" not in text]
    if missing:
        pytest.skip("; ".join(missing))


def repository(root: Path) -> Path:
    models = root / "models"
    for name, parameter in (("prober", ""), ("trusted", "in-process")):
        version = native_models.doer(models / name / "1")
        allow = f'parameters {{ key: "sandbox_allow" value {{ string_value: "{parameter}" }} }}'
        config = CONFIG + native_models.DOING + (allow if parameter else "")
        (version.parent / "config.pbtxt").write_text(config)
    version = native_models.doubler(models / "neighbour" / "1")
    # The file says the rest, and describing it loads the library.
    (version.parent / "config.pbtxt").write_text(CONFIG)
    onnx_models.identity(models / "data" / "1", "FP32", [1])
    write_thief(models / "thief" / "1", models / "weights" / "1")
    (root / STATE).write_text("state")
    return models


def write_thief(version: Path, other: Path) -> None:
    """Write a model, and one whose parameter names the folder of the other's weights."""
    given, made = onnx_models.value("x", "FP32", [1]), onnx_models.value("y", "FP32", [1])
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    for directory, weight in ((version, 0), (other, 7)):
        weights = numpy_helper.from_array(np.full(1, weight, np.float32), "w")
        onnx_models.write(directory, nodes, [given], [made], [weights])
        onnx_models.with_external_weights(directory)
    (version.parent / "config.pbtxt").write_text(
        'backend: "onnxruntime" parameters {'
        ' key: "session.model_external_initializers_file_folder_path"'
        f' value {{ string_value: "{other}" }} }}'
    )


@pytest.fixture(scope="module")
def confined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("confined")
    flags = (
        "--sandbox-models", "--sandbox-allow=in-process", "--sandbox-memory-bytes=2000000000",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVICE_TOKEN", "hunter2")
        with running(repository(root), root / "log", *flags) as mesh:
            yield mesh


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("free")
    with running(repository(root), root / "log") as mesh:
        yield mesh


def children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(status.parent.name))
    return found


def fork_server(mesh: Mesh) -> int:
    """Return the process id of the executor's fork server."""
    (executor,) = mesh.children("nereid_executor")
    for pid in children(executor):
        with contextlib.suppress(OSError):
            if b"backends/native" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    # Between two servers there is none.
    return 0


def workers(mesh: Mesh) -> list[int]:
    """Return the process ids of the executor's workers."""
    return children(fork_server(mesh))


def infer(mesh: Mesh, model: str, name: str, datatype: str, data: list[float]) -> dict[str, Any]:
    tensor = {"name": name, "datatype": datatype, "shape": [len(data)], "data": data}
    if model == "neighbour":
        tensor["shape"] = [1, len(data)]
    body = json.dumps({"inputs": [tensor]}).encode()
    response: dict[str, Any] = json.loads(mesh.get(f"/v2/models/{model}/infer", "POST", body)[1])
    return response


def do(mesh: Mesh, command: str, model: str = "prober") -> int | str:
    """Return errno of a command, or the error of the request."""
    root = mesh.log.parent
    command = command.format(
        neighbour=root / "models" / "neighbour", own=root / "models" / model,
        state=root / STATE, home=Path.home(), port=mesh.http_port,
        **NUMBERS[platform.machine()],
    )  # fmt: skip
    response = infer(mesh, model, "command", "UINT8", [*command.encode()])
    if "error" in response:
        return str(response["error"])
    return int(response["outputs"][0]["data"][0])


@pytest.mark.parametrize("name", PROBES)
def test_probes_fail(confined: Mesh, name: str) -> None:
    assert do(confined, PROBES[name]) in DENIED


@pytest.mark.parametrize(
    "name",
    [
        "weights of another model", "library of another model", "own library", "state",
        "environment of the executor", "descriptors of the executor", "gateway", "netlink",
        "signals", "constructor of the library",
    ],
)  # fmt: skip
def test_the_same_probes_succeed_without_the_sandbox(free: Mesh, name: str) -> None:
    assert do(free, PROBES[name]) == 0


def test_the_model_has_nothing_of_the_executor(confined: Mesh) -> None:
    for command in (
        "variable SERVICE_TOKEN", "variable NEREID_MESH_TOKEN", "descriptor scheduler",
        "descriptor /models", "descriptor /log",
    ):  # fmt: skip
        assert do(confined, command) == errno.ENOENT
    assert do(confined, "fill 4000000000") == errno.ENOMEM
    assert do(confined, "print 2026-01-01 INFO neighbour_0: forged\n") == 0
    until(lambda: "forged" in confined.log.read_text(), "what the model writes")
    line = re.compile(r"^prober_\d: 2026-01-01 INFO neighbour_0: forged$", re.MULTILINE)
    assert line.search(confined.log.read_text())


def test_what_the_operator_allows_is_loaded_into_the_executor(confined: Mesh) -> None:
    assert do(confined, PROBES["state"], "trusted") == 0
    assert infer(confined, "data", "x", "FP32", [3])["outputs"][0]["data"] == [3]
    until(lambda: len(workers(confined)) == WORKERS, "the workers of two models")


def test_a_parameter_that_names_the_weights_of_another_model(confined: Mesh, free: Mesh) -> None:
    assert infer(free, "thief", "x", "FP32", [1])["outputs"][0]["data"] == [8]
    entry = confined.index()["thief"]
    assert entry["state"] == "UNAVAILABLE"
    assert "onnx runtime error" in entry["reason"]
    assert re.search(r"SystemError : 13|path does not exist", entry["reason"])
    assert infer(confined, "weights", "x", "FP32", [1])["outputs"][0]["data"] == [8]


def series(mesh: Mesh, model: str) -> dict[str, float]:
    """Return a model's counters on the metrics page."""
    lines = (line.rpartition(" ") for line in mesh.metrics().splitlines() if line[0] != "#")
    return {name: float(number) for name, _, number in lines if f'model="{model}"' in name}


def test_metrics_of_a_model_are_the_same(confined: Mesh, free: Mesh) -> None:
    grown = []
    for mesh in (confined, free):
        before = series(mesh, "neighbour")
        for number in range(3):
            infer(mesh, "neighbour", "x", "FP32", [number])
        infer(mesh, "neighbour", "wrong", "FP32", [1])
        after = series(mesh, "neighbour")
        changes = {name: number - before.get(name, 0) for name, number in after.items()}
        # Times and sizes of memory differ from run to run.
        grown.append(
            {
                name: change if re.search(r"_(success|count|failure)\{", name) else None
                for name, change in changes.items()
            }
        )
    assert grown[0] == grown[1]
    assert 3 in grown[0].values()


def test_a_crash_harms_nobody_else(confined: Mesh) -> None:
    executor = confined.children("nereid_executor")
    ending = threading.Event()
    wrong: list[dict[str, Any]] = []

    def ask() -> None:
        while not ending.is_set():
            response = infer(confined, "neighbour", "x", "FP32", [1.5, -2])
            if response.get("outputs", [{}])[0].get("data") != [3, -4]:
                wrong.append(response)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            commands = ["netlink", "segfault", *["netlink"] * 2, "exit", *["netlink"] * 3]
            replies = [*pool.map(partial(do, confined), commands)]
    finally:
        ending.set()
        asking.join()
    assert not wrong
    how = {"segfault": "signal SIGSEGV", "exit": "exit code 7"}
    for command, reply in zip(commands, replies, strict=True):
        if command == "netlink":
            assert reply == errno.EPERM
        else:
            text = f"the worker of model 'prober' ended with {how[command]}"
            assert text in str(reply)
    assert confined.children("nereid_executor") == executor
    assert len(workers(confined)) == WORKERS


def test_models_start_again_when_their_fork_server_ends(confined: Mesh) -> None:
    server = fork_server(confined)
    os.kill(server, signal.SIGKILL)

    def restarted() -> bool:
        # An instance notices with its next batch.
        infer(confined, "neighbour", "x", "FP32", [1])
        return do(confined, "netlink") == errno.EPERM and len(workers(confined)) == WORKERS

    until(restarted, "the workers of two models")
    assert fork_server(confined) != server
