"""Resent requests whose first run an executor may still have, or have completed.

A scheduler that starts knows of no earlier runs. Executors name, in their hellos, the requests that
they still run and those whose responses they keep; so they do when their session with another
scheduler has ended, whose models this one takes over. A resent request that is named gets the
response of its first run; one that is not waits for the executors to join again, or to report, at
most for a grace period. What becomes of a request without such a response, its owner decides.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from nereid.config.recovery import DEFAULT_TIMES
from nereid.core.codecs import read_response
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.core.messages import InferResponse

    # The response of the first run; None: there is none that could be had.
    OnFirstRun = Callable[[InferResponse | None], None]


class RecallingSession(Protocol):
    """An executor that has joined; executors.sessions.Session is one."""

    hello: pb.Hello

    def send(self, command: pb.ExecutorCommand) -> None:
        """Send it a command."""


class FirstRuns:
    """The earlier runs that executors have named. Create it inside the event loop."""

    def __init__(
        self,
        grace_s: float = DEFAULT_TIMES.start_wait_s,
        takeover_grace_s: float = DEFAULT_TIMES.takeover_reports_s,
        recent_s: float = DEFAULT_TIMES.peer_ping_reply_s,
    ) -> None:
        """grace_s: after the start; takeover_grace_s: after the loss of another scheduler, which an
        executor may have reported recent_s before.
        """
        self._takeover_grace_s = takeover_grace_s
        self._recent_s = recent_s
        self._loop = asyncio.get_running_loop()
        self._grace_s = grace_s
        self._grace_ends = self._loop.time() + grace_s
        self._grace_timer: asyncio.TimerHandle | None = None
        self._sessions: dict[int, RecallingSession] = {}
        # The executors whose reports a takeover waits for; None: those that may join, whoever they
        # are. And when each one last reported.
        self._awaited: set[RecallingSession] | None = None
        self._reported: dict[RecallingSession, float] = {}
        # Resent requests: those that wait for executors to join, and those that were recalled.
        self._unnamed: dict[int, OnFirstRun] = {}
        self._recalled: dict[int, OnFirstRun] = {}

    def restart_grace(self) -> None:
        """Executors can join from now on."""
        self._grace_ends = self._loop.time() + self._grace_s

    def begin_takeover(self, executors: Iterable[RecallingSession]) -> None:
        """Another scheduler was lost: these executors report what they have begun for it, or did
        so just now.
        """
        now_s = self._loop.time()
        if self._awaited is None and now_s < self._grace_ends:
            return  # it has just started: others may still join
        # An executor may have seen the loss, and reported, before this scheduler does.
        recent_s = now_s - self._recent_s
        joined = [*executors]
        self._awaited = {each for each in joined if self._reported.get(each, recent_s) <= recent_s}
        # Executors notice a scheduler that hangs about as soon as its peers do. One that has no
        # session with it just now never reports, so what waits longer waits in vain; and a request
        # that is not named in time may run again, as after any loss.
        self._grace_ends = now_s + self._takeover_grace_s
        if joined:
            self._end_grace_early()
        else:
            self._awaited = None

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
        self._name_runs(session, session.hello.begun_requests)

    def executor_reported(self, session: RecallingSession, request_ids: Iterable[int]) -> None:
        """Its session with another scheduler has ended; it has begun these requests."""
        self._reported[session] = self._loop.time()
        self._name_runs(session, request_ids)
        if self._awaited is not None:
            self._awaited.discard(session)
            self._end_grace_early()

    def executor_left(self, session: RecallingSession) -> None:
        self._reported.pop(session, None)
        lost = [each for each, where in self._sessions.items() if where is session]
        for request_id in lost:
            del self._sessions[request_id]
            self._end(request_id, None)
        if self._awaited is not None:
            self._awaited.discard(session)
            self._end_grace_early()

    def on_recalled(self, message: pb.Recalled) -> None:
        """What an executor says about a request; another cannot be asked any more."""
        has_response = message.HasField("response")
        self._sessions.pop(message.request, None)
        self._end(message.request, read_response(message.response) if has_response else None)

    # ---- inside

    def _name_runs(self, session: RecallingSession, request_ids: Iterable[int]) -> None:
        for request_id in request_ids:
            self._sessions[request_id] = session
            on_first_run = self._unnamed.pop(request_id, None)
            if on_first_run is not None:
                self._recall(session, request_id, on_first_run)

    def _end_grace_early(self) -> None:
        """Once all executors have reported."""
        if not self._awaited and self._loop.time() < self._grace_ends:
            self._grace_ends = self._loop.time()
            if self._grace_timer is not None:
                self._grace_timer.cancel()
            self._on_grace_end()

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
