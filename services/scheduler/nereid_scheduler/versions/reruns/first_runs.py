"""Resent requests whose first run an executor may still have, or have completed.

Executors name the requests that they have. A named request gets the response of its first run. Any
other one waits, at most for a grace period, until the executors have joined or reported. `recalls`
decides; this module has the clock and asks executors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final, Protocol, cast

from nereid.config.recovery import DEFAULT_TIMES
from nereid.core.wire.codecs import read_response
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.timer import RearmableTimer
from nereid_scheduler.versions.waits.recalls import FirstRunEnd, Recall, Recalls

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nereid.core.wire.messages import InferResponse
    from nereid_scheduler.versions.waits.recalls import Decision

# An executor names at most 256 batches in a hello or report, and forgets older ones.
_MAX_NAMED: Final = 1 << 17


class RecallingSession(Hashable, Protocol):
    """Interface for an executor that has joined; executors.sessions.Session implements it."""

    hello: pb.Hello

    def send(self, command: pb.ExecutorCommand) -> None:
        """Send a command to the executor."""


class FirstRunWaiter(Hashable, Protocol):
    """Interface for a resent request that waits for its first run."""

    def on_first_run(self, response: InferResponse | None) -> None:
        """Take the response of the first run; `None` means that there is none."""


class FirstRuns:
    """First runs that executors have named. Create this object inside the event loop."""

    def __init__(
        self,
        grace_s: float = DEFAULT_TIMES.start_wait_s,
        takeover_grace_s: float = DEFAULT_TIMES.takeover_reports_s,
        max_named: int = _MAX_NAMED,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._grace_s = grace_s
        self.recalls = Recalls(self._loop.time() + grace_s, takeover_grace_s, max_named)
        self._timer = RearmableTimer(self._on_timer)

    def restart_grace(self) -> None:
        """Restart the grace period of the start, since executors can join only from now on."""
        self.recalls.begin_grace(self._loop.time() + self._grace_s)
        self._carry_out(())

    def begin_takeover(self, lost: Iterable[str]) -> None:
        """Ask executors which requests they have begun for schedulers that were lost."""
        self._carry_out(self.recalls.begin_takeover(lost, self._loop.time()))

    def find(self, waiter: FirstRunWaiter, request_id: int, run_ids: Collection[int]) -> bool:
        """Let a resent request wait for its first run; return False if there is none."""
        decisions = self.recalls.find(waiter, request_id, run_ids, self._loop.time())
        self._carry_out(decisions or ())
        return decisions is not None

    def forget(self, waiter: FirstRunWaiter) -> None:
        """Forget a resent request that no longer waits."""
        self.recalls.forget(waiter)

    def end_waits(self) -> None:
        """End all waits without a response, as the scheduler ends."""
        self._carry_out(self.recalls.end_waits())

    def executor_joined(self, session: RecallingSession) -> None:
        """Record the runs that a joining executor has begun."""
        begun, now_s = session.hello.begun_requests, self._loop.time()
        self._carry_out(self.recalls.executor_joined(session, begun, now_s))

    def executor_reported(self, session: RecallingSession, begun: pb.BegunRequests) -> None:
        """Record the runs in a report, after a query or a session with another scheduler."""
        now_s = self._loop.time()
        self._carry_out(self.recalls.executor_reported(session, begun.ids, begun.query, now_s))

    def executor_left(self, session: RecallingSession) -> None:
        """Forget an executor that has left."""
        self._carry_out(self.recalls.executor_left(session, self._loop.time()))

    def on_recalled(self, session: RecallingSession, message: pb.Recalled) -> None:
        """Record an executor's answer about the first run of a request."""
        response = read_response(message.response) if message.HasField("response") else None
        self._carry_out(self.recalls.on_recalled(session, message.request, response))

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, FirstRunEnd):
                cast("FirstRunWaiter", decision.waiter).on_first_run(decision.response)
                continue
            command = pb.ExecutorCommand()
            if isinstance(decision, Recall):
                command.recall.request = decision.run
            else:
                command.report_begun.query = decision.number
                command.report_begun.scheduler = decision.scheduler
            cast("RecallingSession", decision.executor).send(command)
        wake_at_s = self.recalls.wake_at_s
        at_ns = None if wake_at_s is None else int(wake_at_s * 1e9)
        self._timer.arm(at_ns, int(self._loop.time() * 1e9))

    def _on_timer(self) -> None:
        self._carry_out(self.recalls.on_time(self._loop.time()))


class NoFirstRuns(FirstRuns):
    """First runs of a scheduler whose executors never name any."""

    def __init__(self) -> None:
        pass

    def find(self, waiter: FirstRunWaiter, request_id: int, run_ids: Collection[int]) -> bool:  # noqa: ARG002 - of FirstRuns
        """Return False."""
        return False

    def end_waits(self) -> None:
        """Do nothing, as no request waits."""


NO_FIRST_RUNS: Final = NoFirstRuns()
