"""What becomes of what execute() returns or raises."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from nereid_executor.backends.python.worker_site.nereid_worker.connection import executor_connection
from nereid_executor.backends.python.worker_site.nereid_worker.pb_utils import api
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.runtime.execution import (
    BatchExecution,
)
from nereid_executor.backends.python.worker_site.nereid_worker.runtime.model_runner import (
    ModelRunner,
)
from nereid_executor.backends.python.worker_site.nereid_worker.runtime.received_requests import (
    RequestSpecEntry,
)
from tests.support.executor.reply_sink import ReplySink

# Models have no types.
pb: Any = api
FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
SPEC = RequestSpecEntry(b'{"inputs": [["X", "INT32", [1]]], "outputs": ["Y"]}')
WAIT_S = 30
FAILED = "Failed to process the request(s) for model 'm_0', message: "


class Log:
    """In place of the channel to the executor: keeps the log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def send(self, kind: int, parts: list[bytes]) -> None:
        assert kind == wire.LOG
        self.lines.append(json.loads(parts[0])[1])


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    executor_connection.set_connection(
        executor_connection.ExecutorConnection(log)  # type: ignore[arg-type]
    )
    yield log
    executor_connection._connection = None


class Model:
    """A model whose execute() is a function."""

    def __init__(self, execute: Callable[[Any], Any], **functions: Any) -> None:
        self.execute = execute
        self.__dict__.update(functions)


def response(value: int = 1) -> Any:
    return pb.InferenceResponse([pb.Tensor("Y", np.array([value], np.int32))])


class Batch:
    """One batch of so many requests on a model."""

    def __init__(
        self,
        execute: Callable[[Any], Any],
        count: int = 2,
        *,
        decoupled: bool = False,
        iterative: bool = False,
        meta: bytes = b"",
    ) -> None:
        self.runner = ModelRunner(Model(execute), "m_0", decoupled=decoupled, iterative=iterative)
        self.sink = ReplySink()
        self.execution = BatchExecution(
            1, self.sink, lambda: None, decoupled=decoupled, iterative=iterative
        )
        for member in range(count):
            raw = np.array([member], np.int32).tobytes()
            self.runner.add_request(self.execution, member, SPEC, [raw], meta)

    def replies(self) -> list[Any]:
        """By member: the output, an error's text, or flags."""
        return [_content(each) for each in self.runner.execute(self.execution)]


def _content(reply: wire.Reply) -> tuple[int, Any]:
    if reply.flags == wire.ERROR:
        return reply.member, json.loads(reply.meta)[1]
    return reply.member, reply.flags or int(reply.tensors[0][0])


def values(requests: Any) -> list[Any]:
    return [response(int(each.inputs()[0].as_numpy()[0]) + 5) for each in requests]


def test_responses_are_the_members() -> None:
    assert Batch(values).replies() == [(0, 5), (1, 6)]


def test_a_request_whose_segment_is_gone_does_not_reach_the_model() -> None:
    batch = Batch(values, 1)
    batch.runner.add_request(batch.execution, 1, SPEC, [wire.Range("1.2.3", 0, 4)], b"")
    batch.runner.add_request(batch.execution, 2, SPEC, [bytes(4)], b"")
    assert batch.replies() == [(1, "the data of the request is gone"), (0, 5), (2, 5)]
    only = Batch(values, 0)
    only.runner.add_request(only.execution, 0, SPEC, [wire.Range("1.2.3", 0, 4)], b"")
    assert only.replies() == [(0, "the data of the request is gone")]


LIST = "Expected a list in the execute return, found type "
RESPONSE = "Expected an 'InferenceResponse' object in the execute function return list, found "
COUNT = (
    "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
    "InferenceRequest(s) size is:2, and InferenceResponse(s) size is:"
)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, f"{LIST}'<class 'NoneType'>'."),
        ([response()] * 3, f"{COUNT}3\n"),
        ([response(), "x"], f"{RESPONSE}type '<class 'str'>'."),
        ([response(), None], f"{RESPONSE}None for a request whose response sender was not used."),
    ],
)
def test_what_execute_may_not_return_fails_the_batch(log: Log, returned: Any, text: str) -> None:
    replies = Batch(lambda _: returned).replies()
    assert replies == [(0, FAILED + text), (1, FAILED + text)]
    assert log.lines == [FAILED + text]


def test_a_request_is_rescheduled_or_responded_to(log: Log) -> None:
    def execute(requests: Any) -> Any:
        requests[0].set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return [response()]

    ((_, text),) = Batch(execute, 1, iterative=True).replies()
    assert text.startswith(f"{FAILED}Expected a None object")
    assert log.lines == [text]


def test_an_exception_fails_those_without_a_response(log: Log) -> None:
    def execute(requests: Any) -> Any:
        requests[0].get_response_sender().send(response(), FINAL)
        raise ValueError("no")

    batch = Batch(execute)
    ((member, text),) = batch.replies()
    assert member == 1
    assert text.startswith(f"{FAILED}ValueError: no")
    assert [_content(each) for _, each in batch.sink.replies] == [(0, 1)]
    # If they cannot be sent, all get the error.
    again = batch.runner.failures(batch.execution, "too large", again=True)
    assert [_content(each) for each in again] == [(each, f"{FAILED}too large") for each in (0, 1)]
    assert log.lines == [text]


def test_senders_may_respond_in_place_of_the_list() -> None:
    def execute(requests: Any) -> Any:
        for each in requests:
            each.get_response_sender().send(response(), FINAL)

    batch = Batch(execute)
    assert batch.replies() == []
    assert [_content(each) for _, each in batch.sink.replies] == [(0, 1), (1, 1)]

    def both(requests: Any) -> Any:
        requests[0].get_response_sender().send(response(), FINAL)
        return [None, response(3)]

    assert Batch(both).replies() == [(1, 3)]


@pytest.mark.parametrize("decoupled", [False, True])
def test_execute_may_be_a_coroutine(log: Log, decoupled: bool) -> None:
    async def execute(requests: Any) -> Any:
        await asyncio.sleep(0)
        return values(requests) if not decoupled else 3

    batch = Batch(execute, decoupled=decoupled)
    if not decoupled:
        assert batch.replies() == [(0, 5), (1, 6)]
        return
    # It is not waited for; here it fails.
    assert batch.replies() == []
    for _ in range(2):
        assert batch.sink.arrived.acquire(timeout=WAIT_S)
    assert all("must return None" in _content(each)[1] for _, each in batch.sink.replies)
    assert "must return None" in log.lines[0]


@pytest.mark.parametrize("is_async", [False, True])
def test_requests_of_iterative_sequences_may_come_again(is_async: bool) -> None:
    def execute(requests: Any) -> Any:
        for each in requests:
            each.set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return None if is_async else [None, None]

    async def execute_later(requests: Any) -> Any:
        return execute(requests)

    batch = Batch(
        execute_later if is_async else execute,
        decoupled=is_async,
        iterative=True,
        meta=b'{"iteration": "1.0"}',
    )
    replies = batch.replies()
    if is_async:
        assert batch.sink.arrived.acquire(timeout=WAIT_S)
        replies = [_content(each) for _, each in batch.sink.replies]
    assert replies == [(0, wire.RESCHEDULED), (1, wire.RESCHEDULED)]


@pytest.mark.parametrize("ready", [True, False, 3])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_model_says_whether_it_is_ready(ready: Any, is_async: bool) -> None:
    async def later() -> Any:
        return ready

    async def execute(requests: Any) -> Any:
        return values(requests)

    is_ready = later if is_async else lambda: ready
    runner = ModelRunner(Model(execute, is_ready=is_ready), "m_0", decoupled=False)
    assert runner.has_is_ready
    for _ in range(2):
        if ready == 3:
            with pytest.raises(TypeError, match="instead of a bool"):
                runner.is_ready()
        else:
            assert runner.is_ready() is ready
        # Then in the event loop that it has.
        execution = BatchExecution(1, ReplySink(), lambda: None, decoupled=False)
        runner.add_request(execution, 0, SPEC, [bytes(4)], b"")
        assert [_content(each) for each in runner.execute(execution)] == [(0, 5)]


def test_the_end_of_a_model() -> None:
    ends: list[str] = []
    model = Model(values, finalize=lambda: ends.append("finalize"))
    ModelRunner(model, "m_0", decoupled=False).finalize()
    plain = ModelRunner(Model(values), "m_0", decoupled=False)
    plain.finalize()
    assert not plain.has_is_ready
    assert ends == ["finalize"]
