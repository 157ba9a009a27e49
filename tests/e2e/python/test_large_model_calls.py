"""Large tensors that models ask models with: in shared memory where processes can share it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from tests.support.mesh.commands import say
from tests.support.mesh.large_tensors import BRIEFLY
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.mesh.separate_services import alive, workers
from tests.support.models import python_models

pytestmark = pytest.mark.slow

SERVICES = ("nereid_mesh.serve.joined", "nereid_executor")
# Past a segment's idle time, and a good deal more for a busy machine.
IDLE_S = 90.0
# Elements of four bytes: so many are mapped, and so many copied.
LARGE = 2_000_000
MEDIUM = 100_000


def save_models(root: Path, instances: int = 1) -> Path:
    python_models.save(root, "caller", python_models.CALLER % instances)
    python_models.save(root, "identity")
    return root


def segments_of(pid: int) -> int:
    """How many pieces of shared memory a process has made."""
    count = 0
    with contextlib.suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                count += "memfd:nereid-segment" in str(each.readlink())
    return count


def segments(mesh: Mesh) -> int:
    pids = [pid for module in SERVICES for pid in mesh.children(module)]
    for executor in mesh.children("nereid_executor"):
        with contextlib.suppress(OSError):
            pids += workers(executor)
    return sum(map(segments_of, pids))


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = save_models(tmp_path_factory.mktemp("repository"))
    with running(root, tmp_path_factory.mktemp("mesh") / "log") as mesh:
        yield mesh


@pytest.mark.unconfined("a confined model has no segments in common with its executor")
def test_both_ways_are_through_shared_memory(mesh: Mesh) -> None:
    worker = int(say(mesh, "pid", "caller"))
    for _ in range(20):
        # A response is held in place, and given back when the model lets go of it.
        assert say(mesh, f"mapped {LARGE}", "caller") == "1 0"
    # Its requests lay in the same segment one after the other.
    assert segments_of(worker) == 1
    (executor,) = mesh.children("nereid_executor")
    # The first response was copied there, and segments were allocated for the following ones: more
    # than one, as the release of the last may still be on its way.
    assert 1 <= segments_of(executor) <= 6


def test_nothing_is_mapped_for_a_request(mesh: Mesh) -> None:
    """Segments stay mapped and are used again; another one joins while a release is on its way."""
    calls = 100
    first, *_, last = [
        sum(map(int, say(mesh, f"mapped {MEDIUM}", "caller").split())) for _ in range(calls)
    ]
    # On a busy machine many a release is on its way; one mapping for each call is twice as much.
    assert last - first < calls / 2


@pytest.mark.parametrize("elements", [16_000, 16_384, 50_000_000])
def test_it_comes_back_as_it_went(mesh: Mesh, elements: int) -> None:
    assert say(mesh, f"large {elements}", "caller") == "True"


def test_responses_that_a_model_keeps_do_not_change(mesh: Mesh) -> None:
    """Also while others use memory of that size, and when they die."""
    assert say(mesh, "keep 100000 1,2,3,4,5", "caller") == "5"
    assert say(mesh, "keep 100000 6,7,8,9", "caller") == "9"
    for _ in range(5):
        assert say(mesh, "large 100000", "caller") == "True"
    assert json.loads(say(mesh, "let_go", "caller")) == [[float(each)] for each in range(1, 10)]


KNOWN = (
    # The asking worker died, or the asked one, or their executor with the response.
    "Stub process",
    "the executor was lost before its response was read",
    "attempts to execute the request",
    # It had no time yet to come back.
    "is being loaded",
)


class Clients:
    """So many clients that have large things asked."""

    def __init__(self, mesh: Mesh, count: int) -> None:
        self.mesh = mesh
        self.right = threading.Semaphore(0)
        self.wrong: list[str] = []
        self.ending = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, number: int) -> None:
        while not self.ending.is_set() and not self.wrong:
            try:
                reply = say(self.mesh, f"large {20_000 + 30_000 * number}", "caller")
            except InferenceServerException as error:
                reply = str(error)
            if reply != "True" and not any(each in reply for each in KNOWN):
                self.wrong.append(reply)
            if reply == "True" or self.wrong:
                self.right.release()

    def await_right(self, count: int) -> None:
        for _ in range(count):
            assert self.right.acquire(timeout=60), self.wrong
        assert not self.wrong

    def end(self) -> None:
        self.ending.set()
        for thread in self.threads:
            thread.join()


def instances(mesh: Mesh) -> float:
    """How many are ready."""
    lines = [line for line in mesh.metrics().splitlines() if line.startswith("nereid_instances{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def kill_a_worker(mesh: Mesh, chance: random.Random) -> None:
    # One that dies while it loads its model fails the load.
    others = len(mesh.index()) - 1
    until(lambda: instances(mesh) == 2 * (3 + others), "all instances")
    living = []
    for executor in mesh.children("nereid_executor"):
        # It may just have gone.
        with contextlib.suppress(OSError):
            living += [pid for pid in workers(executor) if alive(pid)]
    if living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(living), signal.SIGKILL)


@pytest.mark.nightly
def test_processes_that_are_killed_leave_no_memory_behind(tmp_path: Path) -> None:
    """Neither callers, nor callees, nor executors with all of them."""
    save_models(tmp_path / "repository", 3)
    chance = random.Random(5)
    with running(tmp_path / "repository", tmp_path / "log", BRIEFLY, executors=2) as mesh:
        clients = Clients(mesh, 6)
        try:
            clients.await_right(10)
            for turn in range(20):
                if turn % 4 == 3:
                    mesh.kill("nereid_executor")
                else:
                    kill_a_worker(mesh, chance)
                clients.await_right(chance.randrange(1, 8))
        finally:
            clients.end()
        assert not clients.wrong
        until(lambda: len(mesh.children("nereid_executor")) == 2, "another executor")
        assert say(mesh, f"large {LARGE}", "caller") == "True"
        until(lambda: not segments(mesh), "segments to go", IDLE_S)
