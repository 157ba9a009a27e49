"""Sessions with the schedulers that listen at one address, one after another."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nereid.pb import nereid_pb2 as pb
from nereid.rpc.net.backoff import Backoff, BackoffOptions
from nereid_executor.session.metrics import UsageReader
from nereid_executor.session.session import SchedulerSession, wait_for_any

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc import Channel
    from nereid_executor.instances.tenure import SchedulerEndpoint
    from nereid_executor.session.session import SessionContext

_log = logging.getLogger(__name__)

# Pauses grow slowly, so that the delay is a small part of the scheduler's own start.
_PAUSES: Final = BackoffOptions(first_s=0.01, factor=1.2)
# Services start in any order, so a shorter absence is normal.
_WARN_AFTER_S: Final = 3.0


class SchedulerSessions:
    """Joins the scheduler at one address, again and again."""

    def __init__(
        self, context: SessionContext, channel: Channel, endpoint: SchedulerEndpoint, label: str
    ) -> None:
        self._context = context
        self._channel = channel
        self._endpoint = endpoint
        self._label = label
        self._ends: set[asyncio.Task[None]] = set()
        self.session: SchedulerSession | None = None

    @property
    def joined(self) -> bool:
        """True if, in the current session, a scheduler has accepted this executor."""
        session = self.session
        return session is not None and session.accepted and not session.ended.is_set()

    @property
    def is_commanded(self) -> bool:
        """True if, in the current session, the scheduler has sent a command."""
        session = self.session
        return self.joined and session is not None and session.is_commanded

    async def run(self, leaving: asyncio.Event, is_wanted: Callable[[], bool]) -> None:
        """Run sessions until `leaving` is set, or until a session ends and no other is wanted."""
        loop, times = asyncio.get_running_loop(), self._context.instances.context.times
        backoff = Backoff(replace(_PAUSES, largest_s=times.join_pause_s))
        alone_since = loop.time()
        # Level and reason of the last logged failure, which is not logged again.
        logged = logging.NOTSET, ""
        while not leaving.is_set() and is_wanted():
            session = SchedulerSession(self._context, self._channel, self._endpoint)
            self.session = session
            usage_reports = asyncio.ensure_future(self._report_usage(session))
            await wait_for_any(session.ended, leaving)
            usage_reports.cancel()
            if leaving.is_set():
                return
            if session.accepted:
                end = asyncio.ensure_future(session.give_up_instances())
                self._ends.add(end)
                end.add_done_callback(self._ends.discard)
                # The next hello names the requests that have run, so let instances finish.
                await asyncio.wait((end,), timeout=times.executor_report_s)
                backoff.succeeded()
                alone_since = loop.time()
                logged = logging.NOTSET, ""
            else:
                persists = loop.time() - alone_since > _WARN_AFTER_S
                failure = logging.WARNING if persists else logging.DEBUG, session.end_reason
                if failure != logged:
                    logged = failure
                    _log.log(failure[0], "%s cannot be joined: %s", self._label, failure[1])
            await wait_for_any(leaving, timeout_s=backoff.next_delay_s())

    async def leave(self, timeout_s: float) -> bool:
        """End the session, if there is one; return False if instances are still running."""
        return self.session is None or await self.session.leave(timeout_s)

    async def close(self) -> None:
        """Close the channel to the scheduler."""
        await self._channel.close()

    async def _report_usage(self, session: SchedulerSession) -> None:
        """Report this machine's usage at intervals; read it in a thread, since NVML may block."""
        interval_s = self._context.settings.metrics_interval_ms / 1000
        if not interval_s:
            return
        devices = self._context.hello.devices
        reader = UsageReader([device.uuid for device in devices if device.kind == pb.Device.GPU])
        while not session.ended.is_set():
            try:
                session.report_usage(await asyncio.to_thread(reader.read))
            except Exception:
                _log.exception("this machine's usage cannot be reported any more")
                return
            await asyncio.sleep(interval_s)
