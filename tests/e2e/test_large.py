"""Large tensors through the real mesh: in shared memory where processes can share it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.e2e.mesh import Mesh, free_port, running, until
from tests.e2e.test_by_hand import ready, service

pytestmark = pytest.mark.slow

MODULES = (
    "services.joined",
    "services.gateway",
    "services.scheduler",
    "services.executor",
)
IMAGE = (1, 3 * 1024 * 1024)
ROOM = "--http-max-input-size=400000000"
# Past a segment's idle time, and a good deal more for a busy machine.
IDLE_S = 90.0


def tensor(elements: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).random((1, elements), dtype=np.float32)


class Client:
    """Infer calls of either protocol."""

    def __init__(self, protocol: str, address: str) -> None:
        self._module: Any = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
        limits = {} if protocol == "grpc" else {"connection_timeout": 60, "network_timeout": 60}
        self._client = self._module.InferenceServerClient(address, **limits)

    def infer(self, model: str, array: Any, **options: Any) -> Any:
        given = self._module.InferInput("INPUT0", list(array.shape), "FP32")
        given.set_data_from_numpy(array)
        return self._client.infer(model, [given], **options).as_numpy("OUTPUT0")

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def client(mesh: Mesh, protocol: str) -> Iterator[Client]:
    with contextlib.closing(Client(protocol, getattr(mesh, protocol))) as one:
        yield one


def segments(mesh: Mesh, modules: tuple[str, ...] = MODULES) -> dict[int, int]:
    """The sizes of all the memory that the mesh's processes share, by its number."""
    found = {}
    for module in modules:
        for pid in mesh.children(module):
            directory = Path(f"/proc/{pid}/fd")
            with contextlib.suppress(OSError):
                for each in directory.iterdir():
                    with contextlib.suppress(OSError):
                        if "memfd:nereid-slab" in str(each.readlink()):
                            about = each.stat()
                            found[about.st_ino] = about.st_size
    return found


@pytest.fixture(scope="module", params=["all", "none", "grpcio"])
def shared(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    flags = [f"--join={request.param}"] if request.param != "grpcio" else ["--grpc-engine=grpcio"]
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(repository, log, ROOM, *flags) as mesh:
        yield mesh


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_image_comes_back_as_it_went(shared: Mesh, protocol: str) -> None:
    image = tensor(IMAGE[1])
    with client(shared, protocol) as one:
        for _ in range(3):
            assert np.array_equal(one.infer("identity_fp32", image), image)
    assert segments(shared), "it went through shared memory"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_two_hundred_megabytes_come_back_as_they_went(shared: Mesh, protocol: str) -> None:
    large = tensor(50_000_000)
    with client(shared, protocol) as one:
        assert np.array_equal(one.infer("identity_fp32", large), large)


def test_many_large_requests_at_once_do_not_get_each_others_tensors(shared: Mesh) -> None:
    wrong: list[str] = []

    def work(protocol: str, seed: int) -> None:
        with client(shared, protocol) as one:
            for turn in range(8):
                array = tensor(100_000 + 7 * seed, seed * 100 + turn)
                if not np.array_equal(one.infer("identity_fp32", array), array):
                    wrong.append(f"{protocol} {seed} {turn}")

    threads = [
        threading.Thread(target=work, args=("http" if seed % 2 else "grpc", seed))
        for seed in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_goes_back_when_nobody_uses_it(shared: Mesh) -> None:
    with client(shared, "grpc") as one:
        one.infer("identity_fp32", tensor(IMAGE[1]))
    until(lambda: not segments(shared), "segments to go", IDLE_S)


@pytest.mark.parametrize("alone", ["gateway", "scheduler", "executor"])
def test_where_one_side_shares_no_memory_tensors_go_inline(
    alone: str, repository: Path, tmp_path: Path
) -> None:
    address, http_port, grpc_port = f"unix:{tmp_path}/s", free_port(), free_port()
    flags = {
        "scheduler": [f"--model-repository={repository}"],
        "executor": [],
        "gateway": [f"--http-port={http_port}", f"--grpc-port={grpc_port}", "--metrics-port=0"],
    }
    flags[alone].append("--slab-limit-bytes=0")
    image = tensor(IMAGE[1])
    with contextlib.ExitStack() as stack:
        for name, own in flags.items():
            dial = f"--scheduler-address={address}"
            stack.enter_context(service(name, tmp_path / name, dial, *own))
        until(lambda: ready(http_port, "identity_fp32"), "the model")
        for protocol, port in (("http", http_port), ("grpc", grpc_port)):
            one = stack.enter_context(contextlib.closing(Client(protocol, f"127.0.0.1:{port}")))
            for _ in range(2):
                assert np.array_equal(one.infer("identity_fp32", image), image)


def test_executors_that_die_lose_no_large_request(repository: Path, tmp_path: Path) -> None:
    """Also not when they die between their answer and the gateway's look at it."""
    wrong: list[str] = []
    done = threading.Event()
    answered = threading.Semaphore(0)

    def work(mesh: Mesh, protocol: str, seed: int) -> None:
        array = tensor(300_000, seed)
        with client(mesh, protocol) as one:
            while not done.is_set():
                try:
                    if not np.array_equal(one.infer("identity_fp32", array), array):
                        wrong.append("another answer")
                except InferenceServerException as error:
                    wrong.append(str(error))
                answered.release()

    log = tmp_path / "log"
    with running(repository, log, "--max-retries=5", executors=2) as mesh:
        threads = [
            threading.Thread(target=work, args=(mesh, "http" if seed % 2 else "grpc", seed))
            for seed in range(4)
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in range(4):
                for _ in range(20):
                    assert answered.acquire(timeout=60)
                mesh.kill("services.executor")
                until(lambda: len(mesh.children("services.executor")) == 2, "another executor")
            for _ in range(20):
                assert answered.acquire(timeout=60)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert not wrong
        until(lambda: not segments(mesh), "segments to go", IDLE_S)


def test_requests_that_are_given_up_leave_no_memory_behind(
    repository: Path, tmp_path: Path
) -> None:
    array = tensor(1_000_000)
    with running(repository, tmp_path / "log") as mesh:
        with client(mesh, "grpc") as one:
            for step in range(30):
                with contextlib.suppress(InferenceServerException):
                    one.infer("identity_fp32", array, client_timeout=0.002 * step)
            assert np.array_equal(one.infer("identity_fp32", array), array)
        until(lambda: not segments(mesh), "segments to go", IDLE_S)
