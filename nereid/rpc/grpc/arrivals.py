"""Detection of requests and messages that arrive too slowly, or not at all.

Each one must make progress within the read timeout and end within a total time. While anything
arrives, the connection must reach a minimum rate.
"""

# layout: compiled

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Generic

from nereid.rpc.grpc.messages import M, PartialMessage
from nereid.rpc.net.limits.stall_detection import ProgressWatch, UploadWatch

if TYPE_CHECKING:
    from nereid.rpc.http2.limits import Limits
    from nereid.rpc.http2.receiver import Receiver


class Arrivals(Generic[M]):
    """Requests and messages that are arriving on one connection, and their time limits."""

    def __init__(self, limits: Limits, streams: dict[int, M], receiver: Receiver[M]) -> None:
        self._streams = streams
        self._receiver = receiver
        self._progress = ProgressWatch(limits.read_timeout_s)
        self._rate = UploadWatch(replace(limits.upload, total_s=None))
        self._total_s = limits.upload.total_s
        # Maps a unary call's id to the time at which its request began to arrive.
        self._began: dict[int, float] = {}
        self._read_timeout_s = limits.read_timeout_s
        # Bytes of an incomplete frame or header block, and the time at which it was first seen.
        self._unfinished_bytes = 0
        self._unfinished_since: float | None = None

    def overdue_calls(self, now: float) -> list[M]:
        """Return the calls whose requests are late although flow control lets the client send."""
        progress: dict[int, tuple[int, int]] = {}
        began: dict[int, float] = {}
        overdue: dict[int, M] = {}
        if not self._receiver.window_withheld:
            for call in self._streams.values():
                if not call.is_arriving:
                    continue
                partial = call.partial_message
                # unacknowledged_bytes already includes a frame that has begun, so compare the
                # frame's missing bytes as well.
                arriving = self._receiver.arriving_bytes(call)
                progress[call.id] = call.unacknowledged_bytes, arriving
                if call.is_unary:
                    began[call.id] = since = self._began.get(call.id, now)
                else:
                    assert isinstance(partial, PartialMessage), "a stream between messages"
                    since = partial.seen_at = partial.seen_at or now
                if self._total_s is not None and now - since >= self._total_s:
                    overdue[call.id] = call
        self._began = began
        for stream_id in self._progress.stalled(progress, now):
            overdue[stream_id] = self._streams[stream_id]
        if not progress:
            self._rate.restart()
        elif self._rate.overdue(self._receiver.received_bytes, now):
            overdue.update((stream_id, self._streams[stream_id]) for stream_id in progress)
        return list(overdue.values())

    def unfinished_too_long(self, now: float) -> bool:
        """Return whether a frame or header block has been incomplete for too long."""
        before, self._unfinished_bytes = self._unfinished_bytes, self._receiver.unfinished_bytes
        # Fewer bytes than before: the earlier frame is complete, and another has begun.
        if not self._unfinished_bytes or self._unfinished_bytes < before:
            self._unfinished_since = None
        elif self._unfinished_since is None:
            self._unfinished_since = now
        elif self._read_timeout_s is not None:
            return now - self._unfinished_since >= self._read_timeout_s
        return False
