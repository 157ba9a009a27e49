"""Models that respond any number of times, and models that ask models."""

import json
import os
import queue
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.support.mesh.commands import say
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import python_models
from tests.support.models.e2e_models import make_repository

pytestmark = pytest.mark.slow

_CONTROL = 'parameters { key: "sandbox_allow" value { string_value: "model-control" } }'
# Long after a client's deadline, on a busy machine as well.
_LIMIT = python_models.LIMIT.replace('"3"', '"60"')

CIRCLE = """
platform: "ensemble"
input { name: "COMMAND" data_type: TYPE_STRING dims: [1] }
output { name: "REPLY" data_type: TYPE_STRING dims: [1] }
ensemble_scheduling { step {
  model_name: "other" model_version: -1
  input_map { key: "COMMAND" value: "COMMAND" } output_map { key: "REPLY" value: "REPLY" }
} }
"""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = make_repository(tmp_path_factory.mktemp("repository"))
    python_models.save(root, "identity")
    python_models.save(root, "talk", python_models.TALK)
    python_models.save(root, "talk", python_models.TALK, "spare")
    python_models.save(root, "talk", python_models.TALK + _LIMIT, "impatient")
    python_models.save(root, "stream")
    python_models.save(root, "caller", python_models.CALLER % 1 + _CONTROL)
    python_models.save(root, "caller", python_models.CALLER % 1, "other")
    python_models.save(root, "caller", python_models.CALLER % 2, "pair")
    python_models.save(root, "asker", python_models.CALLER % 1)
    python_models.save(root, "asker", python_models.CALLER % 1, "asked")
    python_models.save(root, "asker", python_models.CALLER % 1 + _LIMIT, "relayed")
    (root / "circle" / "1").mkdir(parents=True)
    (root / "circle" / "config.pbtxt").write_text(CIRCLE)
    log = tmp_path_factory.mktemp("mesh") / "log"
    names = (
        "add_sub",
        "identity",
        "talk",
        "impatient",
        "stream",
        "caller",
        "other",
        "pair",
        "circle",
        "asker",
        "asked",
        "relayed",
    )
    flags = [f"--load-model={name}" for name in names]
    with running(root, log, "--model-control-mode=explicit", *flags) as mesh:
        yield mesh


class Stream:
    """One gRPC stream, and what came on it."""

    def __init__(self, mesh: Mesh) -> None:
        self.client = tritonclient.grpc.InferenceServerClient(mesh.grpc)
        self.came: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(lambda result, error: self.came.put((result, error)))

    def say(self, command: str, **options: Any) -> None:
        tensor = tritonclient.grpc.InferInput("COMMAND", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([command], np.object_))
        self.client.async_stream_infer("stream", [tensor], **options)

    def next(self) -> str:
        result, error = self.came.get(timeout=20)
        if error is not None:
            return f"error: {error.message()}"
        array = result.as_numpy("REPLY")
        return "" if array is None else str(array[0].decode())

    def close(self) -> None:
        self.client.stop_stream(cancel_requests=True)
        self.client.close()


@pytest.fixture
def stream(mesh: Mesh) -> Iterator[Stream]:
    stream = Stream(mesh)
    yield stream
    stream.close()


def test_a_worker_that_dies_ends_the_responses(mesh: Mesh, stream: Stream) -> None:
    stream.say("count 1")
    assert stream.next() == "0"
    stream.say("die 2")
    assert [stream.next(), stream.next()] == ["0", "1"]
    assert stream.next() == "error: Stub process 'stream_0' is not healthy."
    stream.say("count 1")
    assert stream.next() == "0"


# ---- models that ask models


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        ("large 1000000", "True"),
        ("iterate stream count 500", ",".join([*map(str, range(500)), "end"])),
        ("iterate_again stream count 2", "0 1,end 0,1,end"),
        ("drop stream endless", "x" * 1000),
        ("forked talk echo hi", "this does not work in a process that the model has forked"),
        ("first stream endless", "x" * 1000),
        ("exec talk die SIGKILL", "INTERNAL: Stub process 'talk_0_0' is not healthy."),
    ],
)
def test_models_ask_models(mesh: Mesh, command: str, reply: str) -> None:
    """Beyond what tests/conformance/rows/python_models.py asks of both servers."""
    reported = say(mesh, command, "caller")
    assert reported == reply or (reply and reported.startswith(reply))


@pytest.mark.parametrize("how", ["first", "drop"])
def test_cancelling_stops_the_called_model(mesh: Mesh, stream: Stream, how: str) -> None:
    def cancelled() -> int:
        stream.say("told")
        return int(stream.next().split()[1])

    before = cancelled()
    assert say(mesh, f"{how} stream endless", "caller") == "x" * 1000
    until(lambda: cancelled() > before, "the asked model to notice")


def test_a_model_loads_another_of_what_it_has_itself(mesh: Mesh) -> None:
    assert say(mesh, "load_made spare", "caller") == "loaded"
    assert say(mesh, "exec spare x", "caller") == "made"
    assert say(mesh, "load spare", "caller") == "loaded"
    assert say(mesh, "exec spare echo its own", "caller") == "its own"
    assert say(mesh, "unload spare", "caller") == "unloaded"
    until(lambda: say(mesh, "ready spare", "caller") == "false", "the model to be gone")


def test_a_request_that_could_only_wait_for_itself_is_refused(mesh: Mesh) -> None:
    forever = "the request would wait for ever"
    assert forever in say(mesh, "exec caller ready talk", "caller")
    assert forever in say(mesh, "exec other exec caller ready talk", "caller")
    # An ensemble waits for its steps, and who asks it does as well.
    assert say(mesh, "exec circle exec talk echo hi", "caller") == "hi"
    assert forever in say(mesh, "exec circle ready talk", "other")
    assert forever in say(mesh, "exec circle exec caller ready talk", "caller")
    # With another instance it need not wait.
    assert say(mesh, "exec pair ready talk", "pair") == "true"
    assert forever in say(mesh, "exec pair exec pair ready talk", "pair")


def test_models_that_call_each_other_under_load_all_get_responses(mesh: Mesh) -> None:
    def ask(number: int) -> str:
        models = ("caller", "other") if number % 2 else ("other", "caller")
        return say(mesh, f"exec {models[1]} exec talk echo {number}", models[0])

    with ThreadPoolExecutor(8) as pool:
        for number, reply in enumerate(pool.map(ask, range(80))):
            assert reply == str(number) or "would wait for ever" in reply
    assert say(mesh, "exec talk echo fine", "caller") == "fine"


def test_deadlines_are_carried_along(mesh: Mesh) -> None:
    assert say(mesh, "exec talk echo fresh", "caller") == "fresh"
    deferred = "UNAVAILABLE: the deadline of the requests that it is for passed"
    # A machine that is busy may need some time to begin.
    for timeout_s in (0.3, 2, 10):
        try:
            # The mesh may be faster with the end than a client on a busy machine.
            assert say(mesh, "exec talk hold it", "caller", client_timeout=timeout_s) == deferred
        except InferenceServerException as error:
            assert "DEADLINE_EXCEEDED" in str(error)  # noqa: PT017 - it need not come
        # The other model never responds; the caller was refused at once.
        received = say(mesh, "last", "caller")
        if received != "fresh":
            break
    assert received == deferred
    assert int(say(mesh, "release")) > 0
    assert say(mesh, "exec talk echo back", "caller") == "back"


@pytest.mark.unconfined("its model writes to a folder of the test")
@pytest.mark.parametrize("model", ["asker", "relayed"])
def test_what_is_asked_later_has_nothing_to_do_with_what_is_executed_meanwhile(
    mesh: Mesh, tmp_path: Path, model: str
) -> None:
    """Neither with its deadline, nor with what would be a ring if that asked."""
    command = f"ask_later {tmp_path} asked ask {model} echo hi"
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(say, mesh, command, model)
        try:
            until((tmp_path / "held").exists, "the request to be held")
            # A machine that is busy may need some time to begin.
            for timeout_s in (0.5, 2, 10):
                with pytest.raises(InferenceServerException):
                    say(mesh, f"meet {tmp_path}", model, client_timeout=timeout_s)
                if (tmp_path / "begun").exists():
                    break
            (tmp_path / "go").touch()
            waits = f'nv_inference_pending_request_count{{model="{model}",version="1"}} 1'
            until(lambda: later.done() or waits in mesh.metrics(), "the other model to ask back")
        finally:
            (tmp_path / "go").touch()
            (tmp_path / "enough").touch()
        assert later.result() == "hi"


@pytest.mark.unconfined("its model writes to a folder of the test")
def test_a_ring_by_way_of_what_is_asked_later_ends_with_its_deadline(
    mesh: Mesh, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    around = f"ask_later {tmp_path} asked"
    try:
        # The mesh may be faster with the end than the client.
        reported = say(mesh, f"{around} ask asker {around} echo x", "asker", client_timeout=2)
        assert reported.startswith("error: ")
    except InferenceServerException as error:
        assert "DEADLINE_EXCEEDED" in str(error)  # noqa: PT017 - it need not come
    # Each of both has one instance.
    assert say(mesh, "echo free", "asked", client_timeout=60) == "free"
    assert say(mesh, "echo free", "asker", client_timeout=60) == "free"


@pytest.mark.unconfined("its model writes to a folder of the test")
def test_a_model_that_dies_while_it_asks_comes_back(mesh: Mesh, tmp_path: Path) -> None:
    pid = int(say(mesh, "pid", "impatient"))
    with pytest.raises(InferenceServerException, match="Stub process 'caller_0_0' is not healthy"):
        say(mesh, f"die_asking impatient {tmp_path}", "caller")
    os.kill(pid, signal.SIGKILL)
    assert say(mesh, "exec talk echo again", "caller") == "again"


@pytest.mark.parametrize("when", ["at the start", "later"])
def test_models_load_others_while_they_are_loaded(tmp_path: Path, when: str) -> None:
    root = tmp_path / "repository"
    python_models.save(root, "talk", python_models.TALK)
    parameter = 'parameters { key: "other" value { string_value: "talk" } }'
    python_models.save(root, "loader", python_models.TALK + parameter + _CONTROL)
    flags = ["--load-model=loader"] if when == "at the start" else []
    python_models.save(root, "identity")
    flags += ["--load-model=identity", "--model-control-mode=explicit"]
    with running(root, tmp_path / "log", *flags) as mesh:
        if when == "later":
            assert mesh.get("/v2/repository/models/loader/load", "POST")[0] == 200
        until(lambda: mesh.get("/v2/models/loader/ready")[0] == 200, "the model")
        assert json.loads(say(mesh, "x", "loader")) == [False, True, "there"]
