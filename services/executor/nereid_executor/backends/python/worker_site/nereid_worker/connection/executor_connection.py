"""The worker's connection to its executor, which carries logs, metrics, and calls to the mesh."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..protocol import wire
from ..protocol.channel import is_forked
from ..values.errors import TritonModelException
from .pending_calls import MAX_MAPPED, RELEASE_S, PendingCalls, Response

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable, Sequence

    from ..protocol.channel import Channel
    from .request_segments import RequestSegmentPool


class ExecutorPath:
    """A `CallPath` through the executor."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def send(self, number: int, message: dict[str, Any], tensors: Sequence[Any]) -> None:
        """Send a call as a CALL frame."""
        call = wire.Call(number, 0, json.dumps(message).encode(), tensors)
        self._channel.send(wire.CALL, wire.call_parts(call))

    def send_from_finalizer(self, number: int, message: dict[str, Any]) -> None:
        """Send a call without tensors as a CALL frame, without waiting for a lock."""
        call = wire.Call(number, 0, json.dumps(message).encode(), ())
        self._channel.send_from_finalizer(wire.CALL, wire.call_parts(call))

    def send_and_wait(
        self,
        number: int,
        message: dict[str, Any],
        tensors: Sequence[Any],
        received: queue.SimpleQueue[Response],
    ) -> Response:
        """Send a call and wait for its response in the queue."""
        self.send(number, message, tensors)
        return received.get()


class ExecutorConnection:
    """The worker's end of the connection. Any thread may call the methods."""

    def __init__(
        self,
        channel: Channel,
        model_dir: str = "",
        *,
        verbose: bool = False,
        max_mapped: int = MAX_MAPPED,
        release_s: float = RELEASE_S,
    ) -> None:
        """verbose: send messages of log_verbose. max_mapped, release_s: as for `PendingCalls`."""
        self.channel = channel
        self.verbose = verbose
        self.model_dir = model_dir
        self.instance = ""
        # Starts the thread that reads responses while callers wait. None until calls are enabled.
        self._start_reader: Callable[[], None] | None = None
        # Describes the requests for which the calling thread makes a call.
        self.caller_context: Callable[[], dict[str, Any]] = dict
        self._calls = PendingCalls(
            ExecutorPath(channel), max_mapped=max_mapped, release_s=release_s
        )
        # Returns the PendingCalls of this worker's own link to the scheduler, or None.
        self.own_calls: Callable[[], PendingCalls | None] = lambda: None

    @property
    def segments(self) -> RequestSegmentPool:
        """Segments for the tensors of calls."""
        return self._calls.segments

    def enable_calls(
        self,
        instance: str,
        start_reader: Callable[[], None],
        caller_context: Callable[[], dict[str, Any]],
        segments: RequestSegmentPool | None = None,
    ) -> None:
        """Let the instance's model make calls. Large tensors of calls go into the segments."""
        self.instance = instance
        self._start_reader, self.caller_context = start_reader, caller_context
        if segments is not None:
            self._calls.segments = segments

    def notify(self, kind: int, message: Any, *, finalizing: bool = False) -> None:
        """Send a JSON frame that expects no response. finalizing: a finaliser calls this."""
        if is_forked():
            return
        send = self.channel.send_from_finalizer if finalizing else self.channel.send
        send(kind, [json.dumps(message).encode()])

    def calls(self, *, infer: bool = False) -> PendingCalls:
        """Return the PendingCalls for a new call; raise TritonModelException if there are none."""
        if self._start_reader is None:
            raise TritonModelException("this only works in a model that is being served")
        if is_forked():
            raise TritonModelException("this does not work in a process that the model has forked")
        self._start_reader()
        own_calls = self.own_calls() if infer else None
        return self._calls if own_calls is None else own_calls

    def on_call_response(self, body: bytearray) -> None:
        """Pass the response in a CALL_RESPONSE frame on to the caller."""
        number, flags, meta, tensors = wire.read_call(body)
        message = json.loads(meta) if meta else None
        self._calls.on_response(number, Response(flags, message, tensors))


_connection: ExecutorConnection | None = None


def set_connection(connection: ExecutorConnection) -> None:
    """Set the connection that current_connection() returns in this process."""
    global _connection  # noqa: PLW0603 - a process has one
    _connection = connection


def current_connection() -> ExecutorConnection:
    """Return the process's connection; raise TritonModelException outside of a worker."""
    if _connection is None:
        raise TritonModelException("this only works inside a model that is being served")
    return _connection
