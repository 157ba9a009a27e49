"""Collects timelines: the scheduler's own records, and those of executors over their Join streams.

All executors are asked at the same time, so that they report the same seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.core.errors import Unavailable
from nereid.pb import nereid_pb2 as pb
from nereid.timeline import wire
from nereid.timeline.collection import OFF, Alignment, OwnFrames
from nereid.timeline.records import BatchRecord
from nereid_scheduler.core.measurements.timeline import executing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

    from nereid_scheduler.core.measurements.timeline import SchedulerTimeline
    from nereid_scheduler.placement.executors.sessions import Session

_SILENCE_LIMIT_S: Final = 5.0
_MAX_HELD_BYTES: Final = 256 << 20
_NOT_RECORDED: Final = "it records nothing (--timeline-seconds=0), or is of an older release"
_LOST: Final = "it was lost meanwhile"
_TOO_MUCH: Final = "executors have more records than are held for a timeline; ask for less time"


@dataclass(slots=True, eq=False)
class _Report:
    session: Session
    alignment: Alignment
    frames: deque[bytes] = field(default_factory=deque)
    # Empty if the reply is complete.
    why: str = ""
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, why: str = "") -> None:
        self.why, self.ended = why, True
        self.changed.set()


class Timelines:
    """Collects the timelines of one scheduler and its executors."""

    def __init__(
        self,
        timeline: SchedulerTimeline,
        sessions: Callable[[], Iterable[Session]],
        *,
        silence_limit_s: float = _SILENCE_LIMIT_S,
        max_held_bytes: int = _MAX_HELD_BYTES,
    ) -> None:
        self._recorder = timeline.recorder
        self._own: OwnFrames | None = None
        if self._recorder is not None:
            self._own = OwnFrames(self._recorder)
            self._recorder.add_unfinished(BatchRecord, self._executing)
        self._sessions = sessions
        self._silence_limit_s = silence_limit_s
        self._max_held_bytes = max_held_bytes
        self._held_bytes = 0
        self._numbers = count(1)
        self._reports: dict[int, _Report] = {}

    async def collect(self, request: pb.TimelineRequest) -> AsyncGenerator[bytes]:
        """Yield this scheduler's frames and, if asked, its executors'. Raises Unavailable."""
        if self._own is None:
            raise Unavailable(OFF)
        queries: list[int] = []
        try:
            if request.with_executors:
                queries = [self._ask(session, request.last_ns) for session in self._sessions()]
            async for frame in self._own.collect(request.last_ns):
                yield frame
            for query in queries:
                async for frame in self._read(self._reports[query]):
                    yield frame
        finally:
            for query in queries:
                self._drop(query)

    def _executing(self) -> Iterator[BatchRecord]:
        for session in self._sessions():
            for served, sent in session.executing():
                yield executing((served.name, served.number), sent)

    def _ask(self, session: Session, last_ns: int) -> int:
        query = next(self._numbers)
        assert self._recorder is not None, "asked without records of its own"
        report = self._reports[query] = _Report(session, Alignment(self._recorder.clock))
        if session.hello.records_timeline:
            ask = pb.ReportTimeline(query=query, last_ns=last_ns)
            session.send(pb.ExecutorCommand(report_timeline=ask))
        else:
            report.end(_NOT_RECORDED)
        return query

    async def _read(self, report: _Report) -> AsyncGenerator[bytes]:
        while True:
            while report.frames:
                frame = report.frames.popleft()
                self._held_bytes -= len(frame)
                yield frame
            if report.ended:
                break
            report.changed.clear()
            try:
                async with asyncio.timeout(self._silence_limit_s):
                    await report.changed.wait()
            except TimeoutError:
                report.end(f"it has sent nothing for {self._silence_limit_s:g} s")
        if report.why:
            yield wire.missing_frame(f"executor '{report.session.name}': {report.why}")

    def _drop(self, query: int) -> None:
        report = self._reports.pop(query)
        self._held_bytes -= sum(map(len, report.frames))

    def on_frames(self, session: Session, message: pb.ExecutorTimeline) -> None:
        """Add a part of an executor's reply to its report."""
        report = self._reports.get(message.query)
        if report is None or report.session is not session or report.ended:
            return  # The caller no longer waits.
        if not message.frames:
            report.end()
            return
        try:
            frames = [report.alignment.aligned(frame) for frame in message.frames]
        except DecodeError:
            report.end("it has sent what cannot be read")
            return
        size_bytes = sum(map(len, frames))
        if self._held_bytes + size_bytes > self._max_held_bytes:
            report.end(_TOO_MUCH)
            return
        self._held_bytes += size_bytes
        report.frames += frames
        report.changed.set()

    def executor_left(self, session: Session) -> None:
        """End the reports of an executor whose Join stream has ended."""
        for report in self._reports.values():
            if report.session is session and not report.ended:
                report.end(_LOST)
