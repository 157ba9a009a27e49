"""Each process of the mesh is stopped (SIGSTOP) under light load; nothing waits for it for ever.

Requests with a deadline end at their deadline, others within the documented limit (30 s for a
scheduler, by default), probes are answered meanwhile, and the mesh is ready again by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as grpcclient
from onnx import TensorProto
from tritonclient.utils import InferenceServerException

from tests.support import waiting
from tests.support.mesh.mesh import Mesh, ask, running, until
from tests.support.models import python_models
from tests.support.models.e2e_models import save_identity

pytestmark = pytest.mark.slow

DEADLINE_S = 2.0
# A machine that is busy with other tests.
SLACK_S = 3.0
# The longest that a request without a deadline may take: --reconnect-timeout-secs and slack.
LIMIT_S = 40.0
PROBE_S = 2.0
READY_AGAIN_S = 15.0
# How long a mesh takes to start on a machine that does nothing else; where it takes longer, so does
# its return.
QUIET_START_S = 4.0
MODELS = ("plain", "cached", "identity")
OUTCOMES = {"right", "StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED"}
MESH_PROCESSES = {
    "joined": ("scheduler", "nereid_mesh.serve.joined"),
    "gateway": ("none", "nereid_gateway"),
    "scheduler": ("none", "nereid_scheduler"),
    "cache": ("none", "nereid_cache"),
    "executor": ("none", "nereid_executor"),
    "joined's executor": ("scheduler", "nereid_executor"),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    save_identity(root, "plain", TensorProto.FLOAT, "max_batch_size: 16\n")
    cached = "max_batch_size: 16\nresponse_cache { enable: true }\n"
    save_identity(root, "cached", TensorProto.FLOAT, cached)
    python_models.save(root, "identity")
    return root


class Load:
    """Clients that send one request after the other, each with a deadline of its own or without."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._value = 0
        self.outcomes: Counter[str] = Counter()
        self.longest_s = {True: 0.0, False: 0.0}
        self._ending = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        clients = [
            asyncio.create_task(self._client(model, has_deadline))
            for model in MODELS
            for has_deadline in (True, False)
        ]
        try:
            yield self
        finally:
            self._ending.set()
            await asyncio.gather(*clients)

    async def right_again(self, more: int = 30) -> None:
        """Until so many further requests have had their right response."""
        enough = self.outcomes["right"] + more
        await waiting.until(lambda: self.outcomes["right"] >= enough, 2 * LIMIT_S)

    async def _client(self, model: str, has_deadline: bool) -> None:
        async with grpcclient.InferenceServerClient(self._mesh.grpc) as client:
            while not self._ending.is_set():
                self._value += 1
                began = time.monotonic()
                self.outcomes[await self._request(client, model, self._value, has_deadline)] += 1
                took_s = time.monotonic() - began
                self.longest_s[has_deadline] = max(self.longest_s[has_deadline], took_s)
                await asyncio.sleep(0.02)

    async def _request(
        self, client: grpcclient.InferenceServerClient, model: str, value: int, has_deadline: bool
    ) -> str:
        source, target = ("IN_FP32", "OUT_FP32") if model == "identity" else ("INPUT0", "OUTPUT0")
        array = np.full((1, 1), value, np.float32)
        tensor = grpcclient.InferInput(source, [1, 1], "FP32")
        tensor.set_data_from_numpy(array)
        timeout = DEADLINE_S if has_deadline else None
        try:
            result = await client.infer(model, [tensor], client_timeout=timeout)
        except InferenceServerException as error:
            return str(error.status())
        assert (result.as_numpy(target) == array).all()
        return "right"


def is_ready(mesh: Mesh) -> bool:
    with contextlib.suppress(OSError):
        return mesh.get("/v2/health/ready")[0] == 200
    return False


def check_probes(mesh: Mesh, *, ready: bool | None = None) -> None:
    """Probes and scrapes of a gateway that runs are answered in time."""
    for path, expected in (("/v2/health/live", True), ("/v2/health/ready", ready)):
        began = time.monotonic()
        status, _ = mesh.get(path)
        assert time.monotonic() - began < PROBE_S + SLACK_S
        assert expected is None or (status == 200) is expected
    mesh.get("/v2/models/plain/ready")
    began = time.monotonic()
    status, page = ask(f"127.0.0.1:{mesh.metrics_port}", "/metrics")
    assert (status, b"nereid_gateway_pending_requests" in page) == (200, True)
    assert time.monotonic() - began < PROBE_S + SLACK_S


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that is not restarted meanwhile goes on afterwards."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def workers(mesh: Mesh) -> list[int]:
    """The processes of Python models."""
    (executor,) = mesh.children("nereid_executor")
    children = Path(f"/proc/{executor}/task/{executor}/children").parent.parent.glob("*/children")
    return [int(pid) for each in children for pid in each.read_text().split()]


async def trouble(mesh: Mesh, stop: Callable[[Load], Awaitable[None]]) -> Load:
    """Run light load while stop() stops something and waits until all is well again."""
    load = Load(mesh)
    async with load.running():
        await load.right_again()
        await stop(load)
        await load.right_again()
    assert set(load.outcomes) <= OUTCOMES, load.outcomes
    assert load.longest_s[True] < DEADLINE_S + SLACK_S
    assert load.longest_s[False] < LIMIT_S
    return load


def stop_and_await_restart(
    mesh: Mesh, pid: int, find: Callable[[], list[int]], *, probed: bool, limit_s: float
) -> None:
    """Stop a process; it is replaced by another, and the mesh is ready again within the limit."""
    began = time.monotonic()
    with stopped(pid):

        def is_killed() -> bool:
            if probed:
                check_probes(mesh)
            return pid not in find()

        until(is_killed, "it to be killed", limit_s)
        until(lambda: find() and is_ready(mesh), "the mesh to be ready again", limit_s)
    assert time.monotonic() - began < limit_s


def run_round(mesh: Mesh, module: str, limit_s: float) -> Load:
    def find() -> list[int]:
        return mesh.children(module)

    async def stop(_load: Load) -> None:
        probed = module not in ("nereid_mesh.serve.joined", "nereid_gateway")
        (pid,) = find()
        await asyncio.to_thread(
            stop_and_await_restart, mesh, pid, find, probed=probed, limit_s=limit_s
        )

    return asyncio.run(trouble(mesh, stop))


@pytest.mark.parametrize(
    "process",
    [
        "joined",
        pytest.param("scheduler", marks=pytest.mark.nightly),
        pytest.param("executor", marks=pytest.mark.nightly),
    ],
)
def test_a_stopped_process_is_replaced_in_time(
    repository: Path, tmp_path: Path, process: str
) -> None:
    """With a shorter limit, and time for a machine that is busy."""
    join, module = MESH_PROCESSES[process]
    flags = (f"--join={join}", "--watchdog-timeout-secs=3", "--cache-config=local,size=1048576")
    with running(repository, tmp_path / "log", *flags) as mesh:
        load = run_round(mesh, module, 4 * READY_AGAIN_S)
        assert load.outcomes["right"] > 0
        assert "hangs: no heartbeat" in mesh.log.read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("process", MESH_PROCESSES)
def test_a_stopped_process_is_replaced_in_time_by_default(
    repository: Path, tmp_path: Path, process: str
) -> None:
    join, module = MESH_PROCESSES[process]
    flags = (f"--join={join}", "--cache-config=local,size=1048576")
    began = time.monotonic()
    with running(repository, tmp_path / "log", *flags) as mesh:
        busy_s = max(0.0, time.monotonic() - began - QUIET_START_S)
        run_round(mesh, module, READY_AGAIN_S + busy_s)


def test_a_stopped_scheduler_is_noticed_without_a_watchdog(
    repository: Path, tmp_path: Path
) -> None:
    """As where services are containers: the gateway says so at its probes and fails in time."""
    flags = ("--join=none", "--watchdog-timeout-secs=0", "--reconnect-timeout-secs=4")
    quick = ("--mesh-silence-secs=2.5",)
    with running(repository, tmp_path / "log", *flags, *quick) as mesh:

        async def stop(load: Load) -> None:
            (pid,) = mesh.children("nereid_scheduler")
            with stopped(pid):
                refused = load.outcomes["StatusCode.UNAVAILABLE"]
                await waiting.until(
                    lambda: load.outcomes["StatusCode.UNAVAILABLE"] >= refused + 4, LIMIT_S
                )
                await asyncio.to_thread(check_probes, mesh, ready=False)
            await asyncio.to_thread(until, lambda: is_ready(mesh), "the mesh to be ready again")

        load = asyncio.run(trouble(mesh, stop))
        assert load.outcomes["StatusCode.DEADLINE_EXCEEDED"] > 0


def test_a_stopped_worker_is_replaced_and_a_busy_one_is_not(
    repository: Path, tmp_path: Path
) -> None:
    with running(repository, tmp_path / "log", "--mesh-silence-secs=2.8") as mesh:
        (pid,) = workers(mesh)

        async def stop(_load: Load) -> None:
            await asyncio.to_thread(
                stop_and_await_restart,
                mesh,
                pid,
                lambda: workers(mesh),
                probed=True,
                limit_s=4 * READY_AGAIN_S,
            )

        load = Load(mesh)
        asyncio.run(_run(load, stop))
        # What the worker was executing failed with it, as after a crash.
        assert set(load.outcomes) <= OUTCOMES | {"StatusCode.INTERNAL"}, load.outcomes
        assert load.outcomes["StatusCode.INTERNAL"] <= 2
        assert "is stopped for 2 s; killing it" in mesh.log.read_text()


async def _run(load: Load, stop: Callable[[Load], Awaitable[None]]) -> None:
    async with load.running():
        await load.right_again()
        await stop(load)
        await load.right_again()
