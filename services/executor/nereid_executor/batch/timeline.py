"""Timeline records of an executor, and replies to the scheduler that asks for them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nereid.core.errors import NereidError
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import LOW_WATER_BYTES
from nereid.timeline import wire
from nereid.timeline.collection import OwnFrames
from nereid.timeline.recorder import Recorder
from nereid_executor.batch.lifecycle.executions import Executions

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.backends import InstanceSpec

_log = logging.getLogger(__name__)


class ExecutorTimeline:
    """The timeline of one executor."""

    def __init__(self, name: str, seconds: float) -> None:
        self.recorder = Recorder("executor", name, seconds)
        self.own = OwnFrames(self.recorder)

    def executions(self, spec: InstanceSpec) -> Executions:
        """Return a recorder of one instance's batches."""
        return Executions(self.recorder, spec.config.name, str(spec.version), spec.name)


class TimelineReplies:
    """Replies to one scheduler, sent over its Join stream."""

    def __init__(
        self,
        own: OwnFrames,
        send_event: Callable[[pb.ExecutorEvent], None],
        buffered_bytes: Callable[[], int],
    ) -> None:
        self._own = own
        self._send_event = send_event
        self._buffered_bytes = buffered_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        # The session sets this event when the stream's buffer has room again.
        self.writable = asyncio.Event()

    def begin(self, query: pb.ReportTimeline) -> None:
        """Begin to reply to a query. The reply is sent in parts, between other events."""
        task = asyncio.get_running_loop().create_task(self._reply(query))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel the replies, since the stream has ended."""
        for task in self._tasks:
            task.cancel()

    async def _reply(self, query: pb.ReportTimeline) -> None:
        try:
            async for frame in self._own.collect(query.last_ns):
                self._send(query.query, frame)
                while self._buffered_bytes() > LOW_WATER_BYTES:
                    self.writable.clear()
                    await self.writable.wait()
        except NereidError as error:
            self._send(query.query, wire.missing_frame(error.message))
        except Exception:
            _log.exception("the timeline cannot be sent to the scheduler")
        self._send(query.query)

    def _send(self, query: int, *frames: bytes) -> None:
        self._send_event(pb.ExecutorEvent(timeline=pb.ExecutorTimeline(query=query, frames=frames)))
