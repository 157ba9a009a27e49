"""The worker's one connection to its executor: logs, metrics, and calls to the mesh.

Responses to the requests that the model executes do not go through here (see runtime.execution).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from ..pb_utils.errors import TritonModelException
from ..protocol import wire
from ..protocol.channel import is_forked
from . import shared_tensors
from .idle_sweeper import IdleSweeper
from .request_segments import RequestSegmentPool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..protocol.channel import Channel
    from .request_segments import SegmentLease

    OnResponse = Callable[[wire.Call], None]

# Responses in shared memory that a model may hold; more are copied, so that their owners get their
# memory back.
_MOST_MAPPED = 64
# How long the release of a response waits for the next call, which takes it along.
_RELEASE_S = 0.1


class _PendingCall:
    """A call until its last response."""

    __slots__ = ("lease", "on_response", "responded")

    def __init__(self, on_response: OnResponse, lease: SegmentLease | None) -> None:
        self.on_response = on_response
        # The memory of the call's tensors, if they are large.
        self.lease = lease
        self.responded = False


class ExecutorConnection:
    """May be used from any thread."""

    def __init__(
        self,
        channel: Channel,
        model_dir: str = "",
        *,
        verbose: bool = False,
        most_mapped: int = _MOST_MAPPED,
        release_s: float = _RELEASE_S,
    ) -> None:
        """verbose: whether log_verbose is worth sending. release_s: how long the release of a
        response waits for a call that takes it along.
        """
        self.channel = channel
        self.verbose = verbose
        self.model_dir = model_dir
        self.instance = ""
        # Starts the thread that reads responses while callers wait; None: calls are impossible.
        self._start_reader: Callable[[], None] | None = None
        # On behalf of which requests this thread makes a call.
        self.caller_context: Callable[[], dict[str, Any]] = dict
        self._numbers = itertools.count(1)
        self._calls: dict[int, _PendingCall] = {}
        # For the tensors of calls.
        self.segments = RequestSegmentPool(0)
        # Names of the segments whose responses the model still holds.
        self._mapped: set[str] = set()
        self._most_mapped = most_mapped
        self._lock = threading.Lock()
        # Segments whose responses were copied, to be released.
        self._copied: deque[str] = deque()
        self._releaser = IdleSweeper(self._release_copied, release_s)

    def enable_calls(
        self,
        instance: str,
        start_reader: Callable[[], None],
        caller_context: Callable[[], dict[str, Any]],
        segments: RequestSegmentPool | None = None,
    ) -> None:
        """The model of this instance may make calls, and use these segments for their tensors."""
        self.instance = instance
        self._start_reader, self.caller_context = start_reader, caller_context
        if segments is not None:
            self.segments = segments

    def notify(self, kind: int, message: Any, *, finalizing: bool = False) -> None:
        """Send a JSON frame that expects no response. finalizing: called by a finaliser."""
        if is_forked():
            return
        send = self.channel.send_from_finalizer if finalizing else self.channel.send
        send(kind, [json.dumps(message).encode()])

    def start_call(
        self, about: dict[str, Any], tensors: Sequence[Any], on_response: OnResponse
    ) -> int:
        """Call the mesh. on_response is called by the reading thread, up to the last response.

        Raises:
            TritonModelException: calls are not possible.
        """
        if self._start_reader is None:
            raise TritonModelException("this only works in a model that is being served")
        if is_forked():
            raise TritonModelException("this does not work in a process that the model has forked")
        self._start_reader()
        if self._copied and about["what"] == "infer":
            about["released"] = self._pop_copied()
        lease = self.segments.lend_copy(tensors) if about["what"] == "infer" else None
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = _PendingCall(on_response, lease)
        try:
            tensors = tensors if lease is None else lease.places
            call = wire.Call(number, 0, json.dumps(about).encode(), tensors)
            self.channel.send(wire.CALL, wire.call_parts(call))
        except wire.WireError as error:
            del self._calls[number]
            raise TritonModelException(str(error)) from error
        return number

    def cancel_call(self, number: int) -> None:
        """Forget a call and have it cancelled; also for finalisers."""
        self.forget_call(number)
        self._notify_call({"what": "cancel", "call": number})

    def _notify_call(self, about: dict[str, Any]) -> None:
        """A call that expects no response; also for finalisers."""
        call = wire.Call(next(self._numbers), 0, json.dumps(about).encode(), ())
        self.channel.send_from_finalizer(wire.CALL, wire.call_parts(call))

    def forget_call(self, number: int) -> None:
        """Drop further responses."""
        self._calls.pop(number, None)

    def on_call_response(self, body: bytearray) -> None:
        """Pass a CALL_RESPONSE frame on to the caller."""
        response = wire.read_call(body)
        if wire.Range in map(type, response.tensors):
            response = self._map_response(response)
        last = not response.flags & wire.MORE
        pending = self._calls.get(response.number)
        if pending is None:
            return
        if last:
            self.forget_call(response.number)
            # After an error or several responses, somebody may still be reading the segment.
            if pending.lease is not None and not (pending.responded or response.flags & wire.ERROR):
                pending.lease.free()
        pending.responded = True
        pending.on_response(response)

    def _map_response(self, response: wire.Call) -> wire.Call:
        """A response with its tensors copied, or, being large, mapped until the model holds none of
        them any more.
        """
        segment_name = response.tensors[0].segment
        self._mapped.add(segment_name)
        try:
            copies = shared_tensors.copy_response(response.tensors)
            if copies is not None:
                self._mapped.discard(segment_name)
                self._copied.append(segment_name)
                self._releaser.start()
                return response._replace(tensors=copies)
            tensors = shared_tensors.map_response(
                response.tensors, partial(self._release_segment, segment_name)
            )
        except TritonModelException:
            self._release_segment(segment_name)
            meta = json.dumps(
                ["UNAVAILABLE", "the executor was lost before its response was read"]
            ).encode()
            return wire.Call(response.number, response.flags | wire.ERROR, meta, ())
        if len(self._mapped) > self._most_mapped:
            return response._replace(tensors=[bytearray(each) for each in tensors])
        return response._replace(tensors=tensors)

    def _release_segment(self, segment_name: str) -> None:
        self._mapped.discard(segment_name)
        self._send_release([segment_name])

    def _send_release(self, segment_names: list[str]) -> None:
        with contextlib.suppress(wire.LostError, OSError):
            self._notify_call({"what": "release", "segment_names": segment_names})

    def _pop_copied(self) -> list[str]:
        segment_names = []
        with contextlib.suppress(IndexError):
            while True:
                segment_names.append(self._copied.popleft())
        return segment_names

    def _release_copied(self) -> bool:
        """Release what no call took along; whether calls are made at present."""
        segment_names = self._pop_copied()
        if segment_names:
            self._send_release(segment_names)
        return bool(segment_names)


_connection: ExecutorConnection | None = None


def set_connection(connection: ExecutorConnection) -> None:
    global _connection  # noqa: PLW0603 - a process has one
    _connection = connection


def current_connection() -> ExecutorConnection:
    """The process's connection; raises TritonModelException outside of a worker."""
    if _connection is None:
        raise TritonModelException("this only works inside a model that is being served")
    return _connection
