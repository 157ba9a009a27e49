"""Tracks a model's pending calls to the mesh, and the memory of the responses."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..protocol import wire
from ..values.errors import TritonModelException
from . import shared_tensors
from .idle_sweeper import IdleSweeper
from .request_segments import RequestSegmentPool

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable, Sequence

    from .request_segments import SegmentLease

    OnResponse = Callable[["Response"], None]

# Maximum number of responses in shared memory that a model may hold. Further ones are copied, so
# that the owner of the memory gets it back.
MAX_MAPPED = 64
# A release waits this long (seconds) for the next call, which carries it along.
RELEASE_S = 0.1


class Response(NamedTuple):
    """A response to a call: the flags of `wire.Reply`, metadata, and tensors."""

    flags: int
    # Inference: {"outputs": [[name, datatype, shape]...], "parameters": {}}. Error: [code,
    # message]. Empty response: None.
    message: Any
    tensors: Sequence[Any]


class CallPath(Protocol):
    """Carries calls to the mesh, and passes their responses to PendingCalls.on_response()."""

    def send(self, number: int, message: dict[str, Any], tensors: Sequence[Any]) -> None:
        """Send a call; raise WireError if it is too large, LostError if the link is lost."""

    def send_from_finalizer(self, number: int, message: dict[str, Any]) -> None:
        """Send a call without tensors, and never wait for a lock that this thread may hold."""

    def send_and_wait(
        self,
        number: int,
        message: dict[str, Any],
        tensors: Sequence[Any],
        received: queue.SimpleQueue[Response],
    ) -> Response:
        """Send a call and wait for its one response, which on_response() puts into the queue."""


class _PendingCall:
    __slots__ = ("lease", "model", "on_response", "responded")

    def __init__(self, on_response: OnResponse, lease: SegmentLease | None, model: str) -> None:
        self.on_response = on_response
        # The name is empty if the call is not an inference.
        self.model = model
        # Shared memory with the call's tensors; None if they are small and sent inline.
        self.lease = lease
        self.responded = False


class PendingCalls:
    """The pending calls over one path. Thread-safe."""

    def __init__(
        self,
        path: CallPath,
        segments: RequestSegmentPool | None = None,
        *,
        max_mapped: int = MAX_MAPPED,
        release_s: float = RELEASE_S,
    ) -> None:
        self.path = path
        self.segments = RequestSegmentPool(0) if segments is None else segments
        self._numbers = itertools.count(1)
        self._calls: dict[int, _PendingCall] = {}
        # Names of the segments with responses that the model still uses.
        self._mapped: set[str] = set()
        self._max_mapped = max_mapped
        # Names of segments whose responses were copied, and which are not yet released.
        self._copied: deque[str] = deque()
        self._releaser = IdleSweeper(self._release_copied, release_s)

    def any_pending(self) -> bool:
        """Return whether any call still waits for a response."""
        return bool(self._calls)

    def unanswered(self) -> list[tuple[int, str]]:
        """Return the number and the called model of every call without its last response."""
        # A finaliser may remove calls from the table during the iteration.
        calls = [(number, self._calls.get(number)) for number in list(self._calls)]
        return [(number, call.model) for number, call in calls if call is not None]

    def start_call(
        self, message: dict[str, Any], tensors: Sequence[Any], on_response: OnResponse
    ) -> int:
        """Call the mesh and return the call's number; raise TritonModelException if that fails."""
        number, tensors = self._begin(message, tensors, on_response)
        try:
            self.path.send(number, message, tensors)
        except wire.WireError as error:
            self.forget_call(number)
            raise TritonModelException(str(error)) from error
        return number

    def call_and_wait(
        self, message: dict[str, Any], tensors: Sequence[Any], received: queue.SimpleQueue[Response]
    ) -> Response:
        """Call the mesh and return the one response; raise TritonModelException if that fails."""
        number, tensors = self._begin(message, tensors, received.put)
        try:
            return self.path.send_and_wait(number, message, tensors, received)
        except wire.WireError as error:
            self.forget_call(number)
            raise TritonModelException(str(error)) from error

    def _begin(
        self, message: dict[str, Any], tensors: Sequence[Any], on_response: OnResponse
    ) -> tuple[int, Sequence[Any]]:
        lease = None
        if message["what"] == "infer":
            if self._copied:
                message["released"] = self._pop_copied()
            lease = self.segments.lend_copy(tensors)
        number = next(self._numbers)
        self._calls[number] = _PendingCall(on_response, lease, message.get("model", ""))
        return number, tensors if lease is None else lease.places

    def cancel_call(self, number: int) -> None:
        """Forget a call and send its cancellation. Finalisers may call this."""
        self.forget_call(number)
        self._notify({"what": "cancel", "call": number})

    def _notify(self, message: dict[str, Any]) -> None:
        self.path.send_from_finalizer(next(self._numbers), message)

    def forget_call(self, number: int) -> None:
        """Forget a call; responses that arrive later are dropped."""
        self._calls.pop(number, None)

    def on_response(self, number: int, response: Response) -> None:
        """Pass a response on to the callback of its call."""
        if wire.Range in map(type, response.tensors):
            response = self._open_response(response)
        more = response.flags & wire.MORE
        # The call is popped in one step: several threads may bring the last response to one call.
        pending = self._calls.get(number) if more else self._calls.pop(number, None)
        if pending is None:
            return
        # After an error or several responses, another process may still read the segment.
        in_use = more or pending.responded or response.flags & wire.ERROR
        if pending.lease is not None and not in_use:
            pending.lease.free()
        pending.responded = True
        pending.on_response(response)

    def _open_response(self, response: Response) -> Response:
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
            message = ["UNAVAILABLE", "the executor was lost before its response was read"]
            return Response(response.flags | wire.ERROR, message, ())
        if len(self._mapped) > self._max_mapped:
            return response._replace(tensors=[bytearray(tensor) for tensor in tensors])
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
        segment_names = self._pop_copied()
        if segment_names:
            self._send_release(segment_names)
        return bool(segment_names)
