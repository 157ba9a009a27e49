"""Resent requests whose first run an executor may still have, or have completed.

A scheduler that starts knows of no earlier runs. Executors name, in their hellos, the requests that
they still run and those whose responses they keep. A resent request that is named gets the response
of its first run; one that is not waits for the executors to join again, at most for a grace period
after the start. What becomes of a request without such a response, its owner decides.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from nereid.core.codecs import read_response
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import InferResponse

    # The response of the first run; None: there is none that could be had.
    OnFirstRun = Callable[[InferResponse | None], None]

# Executors that lost a scheduler are back within this time (services/executor/service.py).
GRACE_S: Final = 3.0


class RecallingSession(Protocol):
    """An executor that has joined; executors.sessions.Session is one."""

    hello: pb.Hello

    def send(self, command: pb.ExecutorCommand) -> None:
        """Send it a command."""


class FirstRuns:
    """The earlier runs that executors have named. Create it inside the event loop."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._grace_s = grace_s
        self._grace_ends = self._loop.time() + grace_s
        self._grace_timer: asyncio.TimerHandle | None = None
        self._sessions: dict[int, RecallingSession] = {}
        # Resent requests: those that wait for executors to join, and those that were recalled.
        self._unnamed: dict[int, OnFirstRun] = {}
        self._recalled: dict[int, OnFirstRun] = {}

    def restart_grace(self) -> None:
        """Executors can join from now on."""
        self._grace_ends = self._loop.time() + self._grace_s

    def find(self, request_id: int, on_first_run: OnFirstRun) -> bool:
        """Have on_first_run called, later; False: no run is known, and it will not be called."""
        session = self._sessions.get(request_id)
        if session is not None:
            self._recall(session, request_id, on_first_run)
            return True
        left_s = self._grace_ends - self._loop.time()
        if left_s <= 0:
            return False
        self._unnamed[request_id] = on_first_run
        if self._grace_timer is None:
            self._grace_timer = self._loop.call_later(left_s, self._on_grace_end)
        return True

    def forget(self, request_id: int) -> None:
        """The resent request needs nothing any more."""
        self._unnamed.pop(request_id, None)
        self._recalled.pop(request_id, None)

    def end_waits(self) -> None:
        """The scheduler ends: what waits gets no first run."""
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        waiting = [*self._unnamed.values(), *self._recalled.values()]
        self._unnamed.clear()
        self._recalled.clear()
        for on_first_run in waiting:
            on_first_run(None)

    # ---- executors

    def executor_joined(self, session: RecallingSession) -> None:
        for request_id in session.hello.begun_requests:
            self._sessions[request_id] = session
            on_first_run = self._unnamed.pop(request_id, None)
            if on_first_run is not None:
                self._recall(session, request_id, on_first_run)

    def executor_left(self, session: RecallingSession) -> None:
        lost = [
            each for each in session.hello.begun_requests if self._sessions.get(each) is session
        ]
        for request_id in lost:
            del self._sessions[request_id]
            self._end(request_id, None)

    def on_recalled(self, message: pb.Recalled) -> None:
        """What an executor says about a request; another cannot be asked any more."""
        has_response = message.HasField("response")
        self._sessions.pop(message.request, None)
        self._end(message.request, read_response(message.response) if has_response else None)

    # ---- inside

    def _recall(self, session: RecallingSession, request_id: int, on_first_run: OnFirstRun) -> None:
        self._recalled[request_id] = on_first_run
        session.send(pb.ExecutorCommand(recall=pb.Recall(request=request_id)))

    def _end(self, request_id: int, response: InferResponse | None) -> None:
        on_first_run = self._recalled.pop(request_id, None)
        if on_first_run is not None:
            on_first_run(response)

    def _on_grace_end(self) -> None:
        self._grace_timer = None
        unnamed, self._unnamed = self._unnamed, {}
        for on_first_run in unnamed.values():
            on_first_run(None)
