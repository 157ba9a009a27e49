"""Large tensors, who sends them, and the memory that they travel in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, until

_MODULES = (
    "nereid_mesh.serve.joined",
    "nereid_gateway",
    "nereid_scheduler",
    "nereid_executor",
)
# How many numbers an image has.
IMAGE = 3 * 1024 * 1024
# Memory goes back to the system while a test looks on.
BRIEFLY = "--shm-idle-secs=1"
# Past that, and a good deal more for a busy machine.
_IDLE_S = 90.0
_CLIENTS = 4


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


def segments(mesh: Mesh, modules: tuple[str, ...] = _MODULES) -> set[int]:
    """All the memory that the mesh's processes share, by its number."""
    found = set()
    for module in modules:
        for pid in mesh.children(module):
            with contextlib.suppress(OSError):
                for each in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        if "memfd:nereid-segment" in str(each.readlink()):
                            found.add(each.stat().st_ino)
    return found


def await_no_segments(mesh: Mesh, modules: tuple[str, ...] = _MODULES) -> None:
    until(lambda: not segments(mesh, modules), "segments to go", _IDLE_S)


def assert_shared(mesh: Mesh, model: str, images: Iterable[Any], protocol: str) -> None:
    """An identity model's images come back as they went, and went through shared memory."""
    with client(mesh, protocol) as one:

        def went_through(image: Any) -> bool:
            assert np.array_equal(one.infer(model, image), image)
            return bool(segments(mesh))

        for image in images:
            # A machine that is busy elsewhere may look too late.
            until(lambda image=image: went_through(image), "a segment")  # type: ignore[misc]


def run_all(work: Callable[[str, int], None], clients: int) -> None:
    """Have so many threads work at once, each with a protocol and a number of its own."""
    threads = [
        threading.Thread(target=work, args=(("grpc", "http")[number % 2], number))
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def kill_executors_under_load(mesh: Mesh, *models: str, kills: int = 4) -> list[str]:
    """Return what goes wrong for clients of identity models while executors die in turn."""
    wrong: list[str] = []
    done = threading.Event()
    responded = threading.Semaphore(0)

    def work(protocol: str, number: int) -> None:
        model, array = models[number // 2 % len(models)], tensor(300_000, number)
        with client(mesh, protocol) as one:
            while not done.is_set():
                try:
                    if not np.array_equal(one.infer(model, array), array):
                        wrong.append("another answer")
                except InferenceServerException as error:
                    wrong.append(str(error))
                responded.release()

    def await_responses() -> None:
        for _ in range(4 * _CLIENTS):
            assert responded.acquire(timeout=60)

    load = threading.Thread(target=run_all, args=(work, _CLIENTS))
    load.start()
    try:
        for _ in range(kills):
            await_responses()
            mesh.kill("nereid_executor")
            until(lambda: len(mesh.children("nereid_executor")) == 2, "another executor")
        await_responses()
    finally:
        done.set()
        load.join()
    return wrong


def give_up_requests(mesh: Mesh, model: str, requests: int) -> None:
    """A client that waits a little longer each time, until it has had a response."""
    array = tensor(1_000_000)
    with client(mesh, "grpc") as one:
        for step in range(requests):
            with contextlib.suppress(InferenceServerException):
                one.infer(model, array, client_timeout=0.002 * step)
        assert np.array_equal(one.infer(model, array), array)
