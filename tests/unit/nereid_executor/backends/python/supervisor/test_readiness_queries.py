"""Queries whether a model is ready: when the thread is woken, what callers receive."""

from __future__ import annotations

import json

import pytest

from nereid_executor.backends.python.supervisor.readiness_queries import ReadinessQueries


def body_of(*what: object) -> bytearray:
    return bytearray(json.dumps(what).encode())


class Caller:
    """Makes queries; and the thread to be woken."""

    def __init__(self) -> None:
        self.responses: list[bool | None] = []
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_without_a_worker_nothing_is_ready() -> None:
    queries, caller = ReadinessQueries(), Caller()
    assert not queries.enabled
    queries.submit_query(caller.responses.append)
    assert caller.responses == [False]
    assert queries.pop_unsent() == []


def test_each_query_is_sent_once_and_responded_once() -> None:
    queries, caller = ReadinessQueries(), Caller()
    queries.enable(caller.wake)
    assert queries.enabled
    queries.submit_query(caller.responses.append)
    queries.submit_query(caller.responses.append)
    assert caller.woken == 2
    first, second = queries.pop_unsent()
    assert queries.pop_unsent() == []
    queries.on_ready(body_of(second, True))
    queries.on_ready(body_of(first, False))
    queries.on_ready(body_of(first, True))
    assert caller.responses == [True, False]


def test_that_the_worker_asks_its_model_is_passed_on() -> None:
    queries, caller = ReadinessQueries(), Caller()
    queries.enable(caller.wake)
    queries.submit_query(caller.responses.append)
    (number,) = queries.pop_unsent()
    queries.on_ready(body_of(number, None))
    queries.on_ready(body_of(number, True))
    assert caller.responses == [None, True]


@pytest.mark.parametrize("sent", [False, True])
def test_when_the_worker_ends_it_is_not_ready(sent: bool) -> None:
    queries, caller = ReadinessQueries(), Caller()
    queries.enable(caller.wake)
    queries.submit_query(caller.responses.append)
    numbers = queries.pop_unsent() if sent else [1]
    queries.disable()
    assert caller.responses == [False]
    queries.enable(caller.wake)
    assert queries.pop_unsent() == []
    queries.on_ready(body_of(*numbers, True))
    assert caller.responses == [False]


@pytest.mark.parametrize("text", [b"", b"7", b"[1]", b"[[1], true]", b"\xff"])
def test_malformed_responses_are_dropped(text: bytes) -> None:
    queries, caller = ReadinessQueries(), Caller()
    queries.enable(caller.wake)
    queries.submit_query(caller.responses.append)
    (number,) = queries.pop_unsent()
    queries.on_ready(bytearray(text))
    assert caller.responses == []
    queries.on_ready(body_of(number, 1))
    assert caller.responses == [False]
