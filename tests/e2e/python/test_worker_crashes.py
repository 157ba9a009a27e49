"""Workers that are killed, or end with those above them: every request gets a response, and nothing
is left.
"""

import itertools
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.support.mesh.commands import say
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.mesh.separate_services import alive, workers
from tests.support.models import python_models

pytestmark = pytest.mark.slow

CLIENTS, INSTANCES = 32, 4
# Past what processes hand each other inline.
LARGE = 1 << 17


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def memory_files(pid: int) -> int:
    links = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(each.readlink()))
        except OSError:
            continue
    return sum("memfd:" in link for link in links)


class Clients:
    """So many clients, each asking one thing after the other."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.replied = threading.Condition()
        self.replies = 0
        self.wrong: list[str] = []
        self.failures: dict[str, int] = {}
        self.ending = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(CLIENTS)]

    def run(self, number: int) -> None:
        with tritonclient.grpc.InferenceServerClient(self.mesh.grpc) as client:
            for turn in itertools.count():
                if self.ending.is_set():
                    return
                text = f"{number}-{turn}"
                tensors = [tritonclient.grpc.InferInput("COMMAND", [1], "BYTES")]
                tensors[0].set_data_from_numpy(np.array([f"echo {text}"], np.object_))
                if number % 4 == 0:
                    tensors.append(tritonclient.grpc.InferInput("BLOB", [LARGE], "UINT8"))
                    tensors[1].set_data_from_numpy(np.full(LARGE, number, np.uint8))
                try:
                    # A request that never completes would fail the test here.
                    result = client.infer("talk", tensors, client_timeout=60)
                    if result.as_numpy("REPLY")[0].decode() != text:
                        self.wrong.append(f"{text}: {result.as_numpy('REPLY')}")
                except InferenceServerException as error:
                    self.fail(str(error.status()), str(error.message()))
                with self.replied:
                    self.replies += 1
                    self.replied.notify_all()

    def fail(self, status: str, message: str) -> None:
        known = (status, message[:12]) == ("StatusCode.INTERNAL", "Stub process") or (
            status == "StatusCode.UNAVAILABLE" and "attempts to execute the request" in message
        )
        if not known:
            self.wrong.append(f"{status}: {message}")
        self.failures[status] = self.failures.get(status, 0) + 1

    def await_replies(self, count: int) -> None:
        with self.replied:
            goal = self.replies + count
            assert self.replied.wait_for(lambda: self.replies >= goal or self.wrong, 60)


@pytest.mark.parametrize("kills", [12, pytest.param(100, marks=pytest.mark.nightly)])
def test_workers_killed_at_random_under_load(tmp_path: Path, kills: int) -> None:
    config = python_models.TALK.replace("count: 1", f"count: {INSTANCES}")
    python_models.save(tmp_path / "repository", "talk", config)
    chance = random.Random(4)
    with running(tmp_path / "repository", tmp_path / "log") as mesh:
        (executor,) = mesh.children("nereid_executor")
        clients = Clients(mesh)
        for thread in clients.threads:
            thread.start()
        try:
            clients.await_replies(100)
            before = descriptors(executor)
            for _ in range(kills):
                living = [pid for pid in workers(executor) if alive(pid)]
                if living:
                    os.kill(chance.choice(living), signal.SIGKILL)
                clients.await_replies(chance.randrange(1, 40))
                assert not clients.wrong
            clients.await_replies(100)
        finally:
            clients.ending.set()
            for thread in clients.threads:
                thread.join()
        assert not clients.wrong
        # Most succeeded: a killed worker takes only what it had in hand.
        assert sum(clients.failures.values()) < clients.replies / 4
        until(lambda: mesh.get("/v2/models/talk/ready")[0] == 200, "the model")
        until(lambda: len(workers(executor)) == INSTANCES, "as many workers as instances")
        assert all(map(alive, workers(executor)))
        # Streams of instances come and go; what was opened for each is closed.
        until(lambda: descriptors(executor) <= before + INSTANCES, "the descriptors to be closed")
        until(lambda: memory_files(executor) <= 2 * INSTANCES + 8, "the memory to be given back")


def test_workers_end_with_the_mesh(tmp_path: Path) -> None:
    python_models.save(tmp_path / "repository", "talk", python_models.TALK)
    with running(tmp_path / "repository", tmp_path / "log") as mesh:
        pid = int(say(mesh, "pid"))
    until(lambda: not Path(f"/proc/{pid}").exists(), "the worker to be gone")
    assert "talk is finalized" in (tmp_path / "log").read_text()


@pytest.mark.unconfined("its model writes to a folder of the test")
def test_workers_die_with_a_killed_executor_and_what_they_did_is_done_again(tmp_path: Path) -> None:
    python_models.save(tmp_path / "repository", "talk", python_models.TALK)
    place = tmp_path / "place"
    place.mkdir()
    with running(tmp_path / "repository", tmp_path / "log") as mesh, ThreadPoolExecutor(1) as pool:
        (executor,) = mesh.children("nereid_executor")
        pid = int(say(mesh, "pid"))
        met = pool.submit(say, mesh, f"meet {place}")
        until((place / f"{pid}.begun").exists, "the request to be under way")
        os.kill(executor, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid}").exists(), "the worker to be gone")
        until(lambda: len([*place.iterdir()]) == 2, "the request to be under way again")
        (place / "enough").touch()
        again = int(met.result())
        assert again != pid
        assert (place / f"{again}.begun").exists()
