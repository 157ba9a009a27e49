"""The worker's one connection to its executor: logs, metrics, and calls to the mesh.

Responses to the requests that the model executes do not go through here (see runtime.execution).
Calls go through the executor, unless the worker has a way of its own to the scheduler.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..pb_utils.errors import TritonModelException
from ..protocol import wire
from ..protocol.channel import is_forked
from .pending_calls import MAX_MAPPED, RELEASE_S, PendingCalls, Response

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable, Sequence

    from ..protocol.channel import Channel
    from .request_segments import RequestSegmentPool


class ExecutorPath:
    """A CallPath through the executor."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def send(self, number: int, about: dict[str, Any], tensors: Sequence[Any]) -> None:
        call = wire.Call(number, 0, json.dumps(about).encode(), tensors)
        self._channel.send(wire.CALL, wire.call_parts(call))

    def send_from_finalizer(self, number: int, about: dict[str, Any]) -> None:
        call = wire.Call(number, 0, json.dumps(about).encode(), ())
        self._channel.send_from_finalizer(wire.CALL, wire.call_parts(call))

    def send_and_wait(
        self,
        number: int,
        about: dict[str, Any],
        tensors: Sequence[Any],
        received: queue.SimpleQueue[Response],
    ) -> Response:
        self.send(number, about, tensors)
        return received.get()


class ExecutorConnection:
    """May be used from any thread."""

    def __init__(
        self,
        channel: Channel,
        model_dir: str = "",
        *,
        verbose: bool = False,
        max_mapped: int = MAX_MAPPED,
        release_s: float = RELEASE_S,
    ) -> None:
        """verbose: whether log_verbose is worth sending. max_mapped, release_s: of its calls."""
        self.channel = channel
        self.verbose = verbose
        self.model_dir = model_dir
        self.instance = ""
        # Starts the thread that reads responses while callers wait; None: calls are impossible.
        self._start_reader: Callable[[], None] | None = None
        # On behalf of which requests this thread makes a call.
        self.caller_context: Callable[[], dict[str, Any]] = dict
        self._calls = PendingCalls(
            ExecutorPath(channel), max_mapped=max_mapped, release_s=release_s
        )
        # The calls over the way to the scheduler that this process has itself; None: it has none.
        self.own_calls: Callable[[], PendingCalls | None] = lambda: None

    @property
    def segments(self) -> RequestSegmentPool:
        """For the tensors of calls."""
        return self._calls.segments

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
            self._calls.segments = segments

    def notify(self, kind: int, message: Any, *, finalizing: bool = False) -> None:
        """Send a JSON frame that expects no response. finalizing: called by a finaliser."""
        if is_forked():
            return
        send = self.channel.send_from_finalizer if finalizing else self.channel.send
        send(kind, [json.dumps(message).encode()])

    def calls(self, *, infer: bool = False) -> PendingCalls:
        """The way for a call. infer: it is an inference, which may go to the scheduler directly.

        Raises:
            TritonModelException: calls are not possible.
        """
        if self._start_reader is None:
            raise TritonModelException("this only works in a model that is being served")
        if is_forked():
            raise TritonModelException("this does not work in a process that the model has forked")
        self._start_reader()
        own_calls = self.own_calls() if infer else None
        return self._calls if own_calls is None else own_calls

    def on_call_response(self, body: bytearray) -> None:
        """Pass a CALL_RESPONSE frame on to the caller."""
        number, flags, meta, tensors = wire.read_call(body)
        about = json.loads(meta) if meta else None
        self._calls.on_response(number, Response(flags, about, tensors))


_connection: ExecutorConnection | None = None


def set_connection(connection: ExecutorConnection) -> None:
    global _connection  # noqa: PLW0603 - a process has one
    _connection = connection


def current_connection() -> ExecutorConnection:
    """The process's connection; raises TritonModelException outside of a worker."""
    if _connection is None:
        raise TritonModelException("this only works inside a model that is being served")
    return _connection
