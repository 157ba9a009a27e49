"""Bounds how long callers wait for an object store, whatever the store's library does.

Each call runs in a thread of its own, since other work needs the scheduler's threads.

    state   event                                               next state
    normal  fewer than _STUCK_CALLS calls are overdue           normal; calls run
    normal  _STUCK_CALLS calls are overdue                      stuck
    stuck   a call is made, and all running ones are overdue    stuck; its caller gets an error at
                                                                once, but the call runs as a probe
    stuck   a call is made, and some running one is in time     stuck; the call fails at once
    stuck   a call succeeds                                     normal
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from threading import BoundedSemaphore, Lock, Thread
from typing import TYPE_CHECKING, Final, TypeVar

from nereid.object_store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)

_SLOW_S: Final = 10.0
_MAX_CALLS: Final = 16
# Number of overdue calls from which the store is considered stuck.
_STUCK_CALLS: Final = 2


class StoreCalls:
    """Runs the calls to one repository's store. Several threads may use one object."""

    def __init__(self, url: str, most_calls: int = _MAX_CALLS) -> None:
        self._url = url
        self._slots = BoundedSemaphore(most_calls)
        self._lock = Lock()
        self._deadlines: dict[Future[object], float] = {}
        self._succeeded_s = 0.0

    def run(self, call: Callable[[], _Result], limit_s: float) -> _Result:
        """Return a call's result or raise StoreError; a slow call goes on without its caller."""
        now = time.monotonic()
        deadline = now + limit_s
        with self._lock:
            overdue = sum(self._succeeded_s < due <= now for due in self._deadlines.values())
            is_stuck = overdue >= _STUCK_CALLS
            is_tried = any(due > now for due in self._deadlines.values())
        silent = StoreError(f"{self._url}: the store does not respond")
        if is_stuck:
            if not is_tried and self._slots.acquire(blocking=False):
                self._start(call, deadline)
            raise silent
        if not self._slots.acquire(timeout=limit_s):
            raise silent
        done = self._start(call, deadline)
        try:
            return self._await(done, deadline)
        except TimeoutError:
            if done.done():
                # The call itself raised the TimeoutError.
                raise
            raise StoreError(f"{self._url}: no response within {limit_s:g} s") from None

    def _await(self, done: Future[_Result], deadline: float) -> _Result:
        rest_s = max(0.0, deadline - time.monotonic())
        if rest_s > _SLOW_S:
            try:
                return done.result(_SLOW_S)
            except TimeoutError:
                if done.done():
                    raise
            rest_s -= _SLOW_S
            _log.warning(
                "%s: no response after %g s; waiting %g s more", self._url, _SLOW_S, rest_s
            )
        return done.result(rest_s)

    def _start(self, call: Callable[[], _Result], deadline: float) -> Future[_Result]:
        done: Future[_Result] = Future()
        with self._lock:
            self._deadlines[done] = deadline  # type: ignore[index]
        Thread(target=self._call, args=(call, done), name="store-call", daemon=True).start()
        return done

    def _call(self, call: Callable[[], _Result], done: Future[_Result]) -> None:
        try:
            result = call()
        except BaseException as error:
            self._end(done, succeeded=False)
            done.set_exception(error)
        else:
            self._end(done, succeeded=True)
            done.set_result(result)

    def _end(self, done: Future[_Result], *, succeeded: bool) -> None:
        with self._lock:
            del self._deadlines[done]  # type: ignore[arg-type]
            if succeeded:
                self._succeeded_s = time.monotonic()
        self._slots.release()
