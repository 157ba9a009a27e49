"""Calls of a model whose worker has a link of its own to the scheduler: as by the executor, many at
once, and with the end of each process that takes part.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pytest
from tritonclient.utils import InferenceServerException

from tests.support.mesh.commands import say
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import accumulators, python_models

pytestmark = [
    pytest.mark.slow,
    pytest.mark.unconfined("calls of a confined model go through its executor"),
]

# Its worker does not serve the stream: somebody has to be able to end a batch.
LIMITED = python_models.CALLER % 1 + python_models.LIMIT.replace('"3"', '"60"')
CLIENTS = 4
# Whatever comes, comes long before.
LIMIT_S = 60.0


def save_models(root: Path, instances: int = 1) -> Path:
    python_models.save(root, "caller", python_models.CALLER % instances)
    python_models.save(root, "talk", python_models.TALK)
    return root


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = save_models(tmp_path_factory.mktemp("repository"))
    python_models.save(root, "caller", LIMITED, "limited")
    python_models.save(root, "identity")
    python_models.save(root, "stream")
    accumulators.save(root, "dyna_sequence", "python")
    with running(root, tmp_path_factory.mktemp("mesh") / "log", "--join=none") as mesh:
        yield mesh


@pytest.mark.parametrize(
    "command",
    [
        "exec talk echo hi",
        "exec talk about",
        "exec talk raise no",
        "exec talk error INVALID_ARG no: é",
        "exec talk fly",
        "exec nowhere echo",
        "exec stream count 3",
        "exec talk die SIGKILL",
        "iterate talk echo hi",
        "iterate stream count 300",
        "iterate_again stream count 2",
        "iterate nowhere count",
        "first stream endless",
        "drop stream endless",
        *(f"large {size}" for size in (1, 20_000, 100_000, 1_000_000)),
        "keep 20000 1,2,3",
        "let_go",
        "add dyna_sequence 1,2,3,4,5,6,7,8",
        "forked talk echo hi",
        "ready talk",
    ],
)
def test_replies_are_those_of_calls_by_the_executor(mesh: Mesh, command: str) -> None:
    for _ in range(2):
        assert say(mesh, command, "caller") == say(mesh, command, "limited")
    assert say(mesh, "linked", "caller") == "True"
    assert say(mesh, "linked", "limited") == "False"


def test_calls_of_all_kinds_at_once_all_get_their_responses(mesh: Mesh) -> None:
    assert json.loads(say(mesh, "storm talk 2000", "caller")) == {"right": 2000}
    assert say(mesh, "linked", "caller") == "True"


def test_the_calls_of_a_sequence_keep_their_order(mesh: Mesh) -> None:
    values = [*range(1, 101)]
    sums = [*itertools.accumulate(values)]
    # Its last one has the correlation id as well.
    sums[-1] += 1
    command = f"add dyna_sequence {','.join(map(str, values))}"
    assert json.loads(say(mesh, command, "caller")) == sums


class Load:
    """Clients whose model calls another one all the time; what became of requests and calls."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._done = threading.Event()
        self._lock = threading.Lock()
        self.outcomes: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._clients = [self._pool.submit(self._ask) for _ in range(CLIENTS)]
        return self

    def _ask(self) -> None:
        while not self._done.is_set():
            try:
                said = json.loads(
                    say(self._mesh, "storm talk 60", "caller", client_timeout=LIMIT_S)
                )
                assert sum(said.values()) == 60
            except InferenceServerException as error:
                said = {f"request: {error.message()}": 1}
            with self._lock:
                self.outcomes.update(said)

    def await_more(self) -> None:
        """Until so much more has gone well."""
        enough = self.outcomes["right"] + CLIENTS * 2 * 60
        until(lambda: self.outcomes["right"] >= enough, "calls to be answered")

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._pool.shutdown()
        for client in self._clients:
            client.result()


def kill_worker(model: str) -> Callable[[Mesh], None]:
    return lambda mesh: os.kill(int(say(mesh, "pid", model)), signal.SIGKILL)


def kill_scheduler(mesh: Mesh) -> None:
    mesh.kill("nereid_scheduler")


@pytest.mark.parametrize(
    ("kill", "errors"),
    [
        (kill_worker("talk"), ("INTERNAL: Stub process 'talk_0_0' is not healthy.",)),
        (kill_worker("caller"), ("request: Stub process 'caller_0_0' is not healthy.",)),
        (kill_scheduler, ("UNAVAILABLE: ", "request: ")),
    ],
    ids=["called", "caller", "scheduler"],
)
def test_each_end_is_an_error_and_no_more(
    mesh: Mesh, kill: Callable[[Mesh], None], errors: tuple[str, ...]
) -> None:
    with Load(mesh) as load:
        load.await_more()
        for _ in range(2):
            kill(mesh)
            load.await_more()
    others = [each for each in load.outcomes if each != "right"]
    assert all(each.startswith(errors) for each in others), load.outcomes
    assert json.loads(say(mesh, "storm talk 60", "caller")) == {"right": 60}
    assert say(mesh, "linked", "caller") == "True"


@pytest.mark.parametrize(("flag", "linked"), [("token", "True"), ("schedulers", "False")])
def test_links_where_the_mesh_has_a_token_or_two_schedulers(
    tmp_path: Path, flag: str, linked: str
) -> None:
    """A link has a credential of its own; with two schedulers, the executor knows the way."""
    (tmp_path / "token").write_text("a token of this mesh")
    given = {
        "token": [f"--mesh-token-file={tmp_path / 'token'}"],
        "schedulers": ["--schedulers=2", "--join=none"],
    }
    root = save_models(tmp_path / "models", instances=2)
    with running(root, tmp_path / "log", *given[flag]) as mesh:
        until(lambda: say(mesh, "storm talk 60", "caller") == '{"right": 60}', "all to be served")
        with ThreadPoolExecutor(2) as pool:
            said = [*pool.map(lambda _: say(mesh, "storm talk 60", "caller"), range(4))]
        assert {*said} == {'{"right": 60}'}
        assert say(mesh, "linked", "caller") == linked
        assert "no link to the scheduler" not in mesh.log.read_text()
