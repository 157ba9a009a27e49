"""The calls of a model to the mesh that have begun, and the memory of their responses."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..pb_utils.errors import TritonModelException
from ..protocol import wire
from . import shared_tensors
from .idle_sweeper import IdleSweeper
from .request_segments import RequestSegmentPool

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable, Sequence

    from .request_segments import SegmentLease

    OnResponse = Callable[["Response"], None]

# Responses in shared memory that a model may hold; more are copied, so that their owners get their
# memory back.
MAX_MAPPED = 64
# How long the release of a response waits for the next call, which takes it along.
RELEASE_S = 0.1


class Response(NamedTuple):
    """A response to a call: flags as a wire.Reply has, what it says, and tensors."""

    flags: int
    # {"outputs": [[name, datatype, shape]...], "parameters": {}} of an inference; [code, message]
    # of an error; None of an empty one.
    about: Any
    tensors: Sequence[Any]


class CallPath(Protocol):
    """Carries calls to the mesh, and their responses back to PendingCalls.on_response()."""

    def send(self, number: int, about: dict[str, Any], tensors: Sequence[Any]) -> None:
        """From any thread; raises wire.WireError or wire.LostError."""

    def send_from_finalizer(self, number: int, about: dict[str, Any]) -> None:
        """Send a call without tensors; never waits for a lock that this thread may hold."""

    def send_and_wait(
        self,
        number: int,
        about: dict[str, Any],
        tensors: Sequence[Any],
        received: queue.SimpleQueue[Response],
    ) -> Response:
        """Send a call and wait for its one response, which on_response() puts there."""


class _PendingCall:
    """A call until its last response."""

    __slots__ = ("lease", "model", "on_response", "responded")

    def __init__(self, on_response: OnResponse, lease: SegmentLease | None, model: str) -> None:
        self.on_response = on_response
        # The one that is asked; empty: a call of another kind.
        self.model = model
        # The memory of the call's tensors, if they are large.
        self.lease = lease
        self.responded = False


class PendingCalls:
    """The calls over one path. May be used from any thread."""

    def __init__(
        self,
        path: CallPath,
        segments: RequestSegmentPool | None = None,
        *,
        max_mapped: int = MAX_MAPPED,
        release_s: float = RELEASE_S,
    ) -> None:
        """segments: for the tensors of calls. release_s: how long the release of a response waits
        for a call that takes it along.
        """
        self.path = path
        self.segments = RequestSegmentPool(0) if segments is None else segments
        self._numbers = itertools.count(1)
        self._calls: dict[int, _PendingCall] = {}
        # Names of the segments whose responses the model still holds.
        self._mapped: set[str] = set()
        self._max_mapped = max_mapped
        # Segments whose responses were copied, to be released.
        self._copied: deque[str] = deque()
        self._releaser = IdleSweeper(self._release_copied, release_s)

    def any_pending(self) -> bool:
        """Whether any call waits for a response."""
        return bool(self._calls)

    def unanswered(self) -> list[tuple[int, str]]:
        """The numbers of all calls without a last response, and the models that they ask."""
        # A finaliser may change them meanwhile.
        calls = [(number, self._calls.get(number)) for number in list(self._calls)]
        return [(number, call.model) for number, call in calls if call is not None]

    def start_call(
        self, about: dict[str, Any], tensors: Sequence[Any], on_response: OnResponse
    ) -> int:
        """Call the mesh. on_response is called by the reading thread, up to the last response.

        Raises:
            TritonModelException: the call cannot be sent.
        """
        number, tensors = self._begin(about, tensors, on_response)
        try:
            self.path.send(number, about, tensors)
        except wire.WireError as error:
            self.forget_call(number)
            raise TritonModelException(str(error)) from error
        return number

    def call_and_wait(
        self, about: dict[str, Any], tensors: Sequence[Any], received: queue.SimpleQueue[Response]
    ) -> Response:
        """Call the mesh for one response, by way of an empty queue; raises as start_call()."""
        number, tensors = self._begin(about, tensors, received.put)
        try:
            return self.path.send_and_wait(number, about, tensors, received)
        except wire.WireError as error:
            self.forget_call(number)
            raise TritonModelException(str(error)) from error

    def _begin(
        self, about: dict[str, Any], tensors: Sequence[Any], on_response: OnResponse
    ) -> tuple[int, Sequence[Any]]:
        """The number of a new call, and its tensors or, if they are large, their places."""
        lease = None
        if about["what"] == "infer":
            if self._copied:
                about["released"] = self._pop_copied()
            lease = self.segments.lend_copy(tensors)
        number = next(self._numbers)
        self._calls[number] = _PendingCall(on_response, lease, about.get("model", ""))
        return number, tensors if lease is None else lease.places

    def cancel_call(self, number: int) -> None:
        """Forget a call and have it cancelled; also for finalisers."""
        self.forget_call(number)
        self._notify({"what": "cancel", "call": number})

    def _notify(self, about: dict[str, Any]) -> None:
        """A call that expects no response; also for finalisers."""
        self.path.send_from_finalizer(next(self._numbers), about)

    def forget_call(self, number: int) -> None:
        """Drop further responses."""
        self._calls.pop(number, None)

    def on_response(self, number: int, response: Response) -> None:
        """Pass a response on to the caller."""
        if wire.Range in map(type, response.tensors):
            response = self._open_response(response)
        more = response.flags & wire.MORE
        # At once, as several threads may have a last response.
        pending = self._calls.get(number) if more else self._calls.pop(number, None)
        if pending is None:
            return
        # After an error or several responses, somebody may still be reading the segment.
        in_use = more or pending.responded or response.flags & wire.ERROR
        if pending.lease is not None and not in_use:
            pending.lease.free()
        pending.responded = True
        pending.on_response(response)

    def _open_response(self, response: Response) -> Response:
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
            about = ["UNAVAILABLE", "the executor was lost before its response was read"]
            return Response(response.flags | wire.ERROR, about, ())
        if len(self._mapped) > self._max_mapped:
            return response._replace(tensors=[bytearray(each) for each in tensors])
        return response._replace(tensors=tensors)

    def _release_segment(self, segment_name: str) -> None:
        self._mapped.discard(segment_name)
        self._send_release([segment_name])

    def _send_release(self, segment_names: list[str]) -> None:
        with contextlib.suppress(wire.LostError, OSError):
            self._notify({"what": "release", "segment_names": segment_names})

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
