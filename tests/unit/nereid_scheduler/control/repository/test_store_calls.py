"""Calls of a store that may never respond."""

from __future__ import annotations

from contextlib import suppress
from threading import Event

import pytest

from nereid.object_store.errors import StoreError
from nereid_scheduler.control.repository.store_calls import StoreCalls
from tests.support.waiting import until

LONG_S, SHORT_S = 60.0, 0.01


def test_a_call_returns_or_raises() -> None:
    calls = StoreCalls("s3://b", most_calls=1)
    assert calls.run(lambda: 3, LONG_S) == 3
    for error in (StoreError("no"), TimeoutError("late")):

        def fail(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error), match=str(error)):
            calls.run(fail, LONG_S)
    assert calls.run(lambda: 4, LONG_S) == 4


async def test_nobody_waits_longer_than_the_limit() -> None:
    calls, released = StoreCalls("s3://b"), Event()
    with pytest.raises(StoreError, match=r"s3://b: no response within 0\.01 s"):
        calls.run(released.wait, SHORT_S)
    # One that is overdue may be large.
    assert calls.run(lambda: 3, LONG_S) == 3
    for _ in range(2):
        with pytest.raises(StoreError, match="no response"):
            calls.run(released.wait, SHORT_S)
    # One goes on by itself.
    tried, ended = Event(), Event()

    def attempt() -> None:
        assert tried.wait(LONG_S)
        ended.set()

    for call in (attempt, lambda: pytest.fail("a second one")):
        with pytest.raises(StoreError, match="the store does not respond"):
            calls.run(call, LONG_S)
    tried.set()
    assert ended.wait(LONG_S)
    await until(lambda: _responds(calls))
    released.set()


def _responds(calls: StoreCalls) -> bool:
    with suppress(StoreError):
        return calls.run(lambda: True, LONG_S)
    return False


def test_calls_are_bounded() -> None:
    calls, released = StoreCalls("s3://b", most_calls=1), Event()
    with pytest.raises(StoreError, match="no response"):
        calls.run(released.wait, SHORT_S)
    with pytest.raises(StoreError, match="does not respond"):
        calls.run(lambda: 3, SHORT_S)
    released.set()
    assert calls.run(lambda: 3, LONG_S) == 3
