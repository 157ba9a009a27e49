"""Resent requests whose first run an executor may still have, or have completed.

A scheduler that starts knows of no earlier runs. Executors name, in their hellos, the requests that
they still run and those whose responses they keep; so they do when their session with another
scheduler has ended, whose models this one takes over. A resent request that is named gets the
response of its first run; one that is not waits for the executors to join again, or to report, at
most for a grace period. What becomes of a request without such a response, its owner decides.

recalls.py decides; this has the clock, asks executors and notifies who waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final, Protocol, cast

from nereid.config.recovery import DEFAULT_TIMES
from nereid.core.wire.codecs import read_response
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.timer import RearmableTimer
from nereid_scheduler.versions.reruns.recalls import FirstRunEnd, Recall, Recalls

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nereid.core.wire.messages import InferResponse
    from nereid_scheduler.versions.reruns.recalls import Decision

# Of an executor, in its hellos and reports: 256 batches each time. Older ones are forgotten there.
_MAX_NAMED: Final = 1 << 17


class RecallingSession(Hashable, Protocol):
    """An executor that has joined; executors.sessions.Session is one."""

    hello: pb.Hello

    def send(self, command: pb.ExecutorCommand) -> None:
        """Send it a command."""


class FirstRunWaiter(Hashable, Protocol):
    """A resent request."""

    def on_first_run(self, response: InferResponse | None) -> None:
        """The response of the first run; None: there is none that could be had."""


class FirstRuns:
    """The earlier runs that executors have named. Create it inside the event loop."""

    def __init__(
        self,
        grace_s: float = DEFAULT_TIMES.start_wait_s,
        takeover_grace_s: float = DEFAULT_TIMES.takeover_reports_s,
        max_named: int = _MAX_NAMED,
    ) -> None:
        """grace_s: after the start; takeover_grace_s: after the loss of another scheduler.
        max_named: how many runs it remembers.
        """
        self._loop = asyncio.get_running_loop()
        self._grace_s = grace_s
        self.recalls = Recalls(self._loop.time() + grace_s, takeover_grace_s, max_named)
        self._timer = RearmableTimer(self._on_timer)

    def restart_grace(self) -> None:
        """Executors can join from now on."""
        self.recalls.begin_grace(self._loop.time() + self._grace_s)
        self._carry_out(())

    def begin_takeover(self, lost: Iterable[str]) -> None:
        """Other schedulers were lost: executors are asked what they have begun for them."""
        self._carry_out(self.recalls.begin_takeover(lost, self._loop.time()))

    def find(self, waiter: FirstRunWaiter, request_id: int, run_ids: Collection[int]) -> bool:
        """Have the waiter notified, later; False: no run is known, and it will not be.

        run_ids: by which executors know the request; its own among them.
        """
        decisions = self.recalls.find(waiter, request_id, run_ids, self._loop.time())
        self._carry_out(decisions or ())
        return decisions is not None

    def forget(self, waiter: FirstRunWaiter) -> None:
        """The resent request needs nothing any more."""
        self.recalls.forget(waiter)

    def end_waits(self) -> None:
        """The scheduler ends: what waits gets no first run."""
        self._carry_out(self.recalls.end_waits())

    # ---- executors

    def executor_joined(self, session: RecallingSession) -> None:
        begun, now_s = session.hello.begun_requests, self._loop.time()
        self._carry_out(self.recalls.executor_joined(session, begun, now_s))

    def executor_reported(self, session: RecallingSession, begun: pb.BegunRequests) -> None:
        """Its session with another scheduler has ended, or it was asked what it has begun."""
        now_s = self._loop.time()
        self._carry_out(self.recalls.executor_reported(session, begun.ids, begun.query, now_s))

    def executor_left(self, session: RecallingSession) -> None:
        self._carry_out(self.recalls.executor_left(session, self._loop.time()))

    def on_recalled(self, session: RecallingSession, message: pb.Recalled) -> None:
        """What an executor says about a request."""
        response = read_response(message.response) if message.HasField("response") else None
        self._carry_out(self.recalls.on_recalled(session, message.request, response))

    # ---- inside

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for each in decisions:
            if isinstance(each, FirstRunEnd):
                cast("FirstRunWaiter", each.waiter).on_first_run(each.response)
                continue
            command = pb.ExecutorCommand()
            if isinstance(each, Recall):
                command.recall.request = each.run
            else:
                command.report_begun.query = each.number
                command.report_begun.scheduler = each.scheduler
            cast("RecallingSession", each.executor).send(command)
        wake_at_s = self.recalls.wake_at_s
        at_ns = None if wake_at_s is None else int(wake_at_s * 1e9)
        self._timer.arm(at_ns, int(self._loop.time() * 1e9))

    def _on_timer(self) -> None:
        self._carry_out(self.recalls.on_time(self._loop.time()))
