"""Python models that have a request scheduled again, and those with implicit state."""

import os
import queue
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import python_models

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("repository")
    for name, decoupled in (("single", "false"), ("stream", "true")):
        config = python_models.COUNTDOWN % (decoupled, "direct { }")
        python_models.save(root, "countdown", config, name)
    config = python_models.COUNTDOWN % ("true", "direct { }")
    python_models.save(root, "countdown_async", config)
    config = python_models.REMEMBERING % "oldest { max_candidate_sequences: 8 }"
    states = python_models.save(root, "remembering", config) / "initial_state"
    states.mkdir()
    (states / "first.bin").write_bytes(b"\2\0\0\0\xc3\xa9")
    with running(root, tmp_path_factory.mktemp("mesh") / "log") as mesh:
        yield mesh


def tensors(count: int, mode: str = "", wait: str = "") -> list[Any]:
    number = tritonclient.grpc.InferInput("N", [1, 1], "INT32")
    number.set_data_from_numpy(np.array([[count]], np.int32))
    inputs = [number]
    for name, text in (("MODE", mode), ("WAIT", wait)):
        tensor = tritonclient.grpc.InferInput(name, [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[text]], np.object_))
        inputs.append(tensor)
    return inputs


class Stream:
    """One client's stream: what comes, as (request id, LEFT, SIZES, final), or an error."""

    def __init__(self, mesh: Mesh) -> None:
        self.client = tritonclient.grpc.InferenceServerClient(mesh.grpc)
        self._results: queue.Queue[Any] = queue.Queue()
        self.client.start_stream(lambda result, error: self._results.put((result, error)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_stream(cancel_requests=True)
        self.client.close()

    def send(self, model: str, name: str, count: int, mode: str = "", **more: Any) -> None:
        wait = more.pop("wait", "")
        inputs = tensors(count, mode, wait)
        self.client.async_stream_infer(model, inputs, request_id=name, **more)

    def next(self) -> tuple[str, int, str, bool] | str:
        result, error = self._results.get(timeout=30)
        if error is not None:
            return str(error)
        reply = result.get_response()
        final = reply.parameters["triton_final_response"].bool_param
        left = int(result.as_numpy("LEFT")[0, 0])
        return reply.id, left, result.as_numpy("SIZES")[0, 0].decode(), final


def sizes(result: Any) -> str:
    text: bytes = result.as_numpy("SIZES")[0, 0]
    return text.decode()


def test_an_async_model_has_requests_rescheduled(mesh: Mesh) -> None:
    with Stream(mesh) as stream:
        for name in "ab":
            stream.send("countdown_async", name, 3)
        got = sorted(stream.next() for _ in range(6))
        assert got == [(name, left, "async", left == 0) for name in "ab" for left in range(3)]


def test_a_model_is_notified_of_a_cancelled_request_which_does_not_come_again(
    mesh: Mesh, tmp_path: Path
) -> None:
    before = mesh.counts("stream")["execution_count"]
    with Stream(mesh) as stream:
        stream.send("stream", "it", 1000, "wait", wait=str(tmp_path / "never"))
        assert stream.next() == ("it", 999, "1s", False)
    with Stream(mesh) as other:
        other.send("stream", "next", 1)
        assert other.next() == ("next", 0, "1s", True)
    assert mesh.counts("stream")["execution_count"] - before <= 4


# ---- implicit state


def say(client: Any, word: str, which: int, flags: str = "") -> tuple[str, float]:
    tensor = tritonclient.grpc.InferInput("WORD", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[word]], np.object_))
    result = client.infer(
        "remembering",
        [tensor],
        sequence_id=which,
        sequence_start="s" in flags,
        sequence_end="e" in flags,
    )
    assert [output.name for output in result.get_response().outputs] == ["SEEN", "TOTAL_OUT"]
    return result.as_numpy("SEEN")[0, 0].decode(), float(result.as_numpy("TOTAL_OUT")[0, 0])


def test_python_models_have_implicit_state(mesh: Mesh) -> None:
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        assert say(client, "a", 1, "s") == ("é", 1)
        assert say(client, "bb", 2, "s") == ("é", 2)
        assert say(client, "ccc", 1) == ("é|a", 4)
        # An output that is missing leaves its state as it is; so does an error all of them.
        assert say(client, "skip", 1) == ("é|a|ccc", 8)
        with pytest.raises(InferenceServerException, match="ValueError: no"):
            say(client, "raise", 1)
        with pytest.raises(
            InferenceServerException,
            match=r"returned the state 'TEXTS_OUT' as INT32 of shape \[1,2\], but its config.*"
            r"says BYTES of shape \[1,-1\]",
        ):
            say(client, "wrong", 1)
        assert say(client, "dd", 1, "e")[0] == "é|a|ccc"
        assert say(client, "e", 2) == ("é|bb", 3)
        assert say(client, "f", 1, "se") == ("é", 1)
        assert say(client, "g", 2, "e") == ("é|bb|e", 4)


# ---- last, since the executor starts anew


def test_an_executor_is_killed_in_the_middle_of_requests(mesh: Mesh, tmp_path: Path) -> None:
    """One without a response begins anew; one with responses gets an error, once."""
    (executor,) = mesh.own_processes("nereid.services.executor")
    waits = {name: tmp_path / name for name in ("single", "stream")}
    results: list[str] = []

    def ask() -> None:
        with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
            inputs = tensors(3, "wait", str(waits["single"]))
            results.append(sizes(client.infer("single", inputs)))

    thread = threading.Thread(target=ask)
    thread.start()
    with Stream(mesh) as stream:
        stream.send("stream", "it", 3, "wait", wait=str(waits["stream"]))
        assert stream.next() == ("it", 2, "1s", False)
        for wait in waits.values():
            until(wait.exists, "the second iteration")
        os.kill(executor, signal.SIGKILL)
        assert "1 responses into the request" in stream.next()
        waits["single"].unlink()
        until(waits["single"].exists, "the second iteration elsewhere")
        waits["single"].unlink()
        thread.join(60)
        assert results == ["1s 1 1"]
        stream.send("stream", "next", 1)
        assert stream.next() == ("next", 0, "1s", True)
