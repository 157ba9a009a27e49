"""On behalf of which requests a thread of a model makes a call."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from struct import unpack_from
from typing import Any

from nereid_executor.backends.python.worker_site.nereid_worker.runtime.executions import (
    Executions,
    current_batch,
)

UNKNOWN = {"deadline_ns": 0, "caller_known": False}


class Execution:
    """As much of a BatchExecution as is looked at."""

    def __init__(self, number: int, *, has_open_requests: bool) -> None:
        self.number, self.has_open_requests = number, has_open_requests


def context(executions: Executions, batch: int = 0) -> dict[str, Any]:
    """In another thread than the main one."""

    def read() -> dict[str, Any]:
        current_batch.set(batch)
        return executions.caller_context()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, read).result()


def test_the_executor_knows_the_caller_unless_another_batch_has_open_requests() -> None:
    executions = Executions(bytearray(64), decoupled=False)
    assert not executions
    last: Any = Execution(2, has_open_requests=True)
    open_: Any = Execution(1, has_open_requests=False)
    for each in (open_, last):
        executions.add(each)
    executions.note_begun(2)
    assert context(executions) == {}
    open_.has_open_requests = True
    assert context(executions) == UNKNOWN
    # The main thread, and a coroutine of the batch, execute the one that the executor knows.
    assert executions.caller_context() == context(executions, 2) == {}
    assert context(Executions(bytearray(8), decoupled=True), 7) == {}
    assert [executions.find(1), executions.find(2)] == [open_, last]
    del open_, each
    assert executions.find(1) is None
    assert executions


def test_a_stream_that_is_served_here_knows_best() -> None:
    executions = Executions(bytearray(8), decoupled=False)
    asked: list[int | None] = []

    def stream_context(batch: int | None) -> dict[str, Any]:
        asked.append(batch)
        return UNKNOWN

    executions.stream_context = stream_context
    assert executions.caller_context() == context(executions, 3) == UNKNOWN
    assert asked == [None, 3]
    assert threading.current_thread() is threading.main_thread()


def test_the_executor_finds_what_runs() -> None:
    memory = bytearray(5 * 8)
    executions = Executions(memory, decoupled=False)
    executions.note_begun(9)
    executions.note_running([4, 5])
    assert unpack_from("<4Q", memory) == (9, 2, 4, 5)
    # As many as there is room for.
    executions.note_running([1, 2, 3, 4])
    assert unpack_from("<5Q", memory) == (9, 3, 1, 2, 3)
