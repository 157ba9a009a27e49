"""The batches that a worker executes, and their requests until the last response of each.

Does not know where responses go: over the socket to the executor, or to the instance's stream.
"""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from ..connection import shared_tensors
from ..pb_utils.errors import TritonError
from ..pb_utils.requests import NOT_RESCHEDULED
from ..pb_utils.responses import InferenceResponse, InferenceResponseSender
from ..protocol import wire
from .error_text import ModelMisuse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..connection.shared_tensors import MappedInputs
    from ..pb_utils.requests import InferenceRequest
    from ..protocol.channel import Channel

# Outputs' shapes may vary without end.
_MOST_METAS = 1024
_metas: dict[Any, bytes] = {}
_new_tuple = tuple.__new__

# Kinds of controls, as in nereid.proto's MemberControl.
CANCEL, PAUSE, RESUME = 0, 1, 2


class ReplySink(Protocol):
    """Where a batch's replies go."""

    def send_replies(
        self,
        batch: int,
        replies: list[wire.Reply],
        inputs: MappedInputs | None = None,
        *,
        executed: bool = False,
    ) -> None:
        """Send the replies in the list, which is empty afterwards. From any thread.

        inputs: mapped memory that the replies may be views of, and that its owner reuses as soon as
        they are sent. executed: execute() has returned.
        """

    def send_from_finalizer(self, batch: int, reply: wire.Reply) -> None:
        """Send a reply without waiting for any lock that this thread may hold."""


class SocketReplies:
    """Sends replies to the executor."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def send_replies(
        self,
        batch: int,
        replies: list[wire.Reply],
        inputs: MappedInputs | None = None,
        *,
        executed: bool = False,
    ) -> None:
        parts = wire.responses_parts(batch, wire.EXECUTED if executed else 0, replies)
        replies.clear()
        if inputs is not None:
            parts = [b"".join(parts)]
            inputs.copy_held()
        self._channel.send(wire.RESPONSES, parts)

    def send_from_finalizer(self, batch: int, reply: wire.Reply) -> None:
        parts = wire.responses_parts(batch, 0, [reply])
        self._channel.send_from_finalizer(wire.RESPONSES, parts)


class RequestState:
    """A request that may be responded to by its sender, also after execute() has returned."""

    def __init__(self, batch: BatchExecution, member: int, outputs: frozenset[str]) -> None:
        self._batch = batch
        self._outputs = outputs
        self.member = member
        # The final response was sent.
        self.responded = False
        # Cleared while the client cannot keep up; made on the first pause.
        self.resumed: threading.Event | None = None
        self.has_sender = False
        # The model asked to get the request again.
        self.rescheduled = False

    def make_sender(self) -> InferenceResponseSender:
        """The response sender. Not kept here, so that it is collected when the model drops it."""
        self.has_sender = True
        return InferenceResponseSender(
            self._send, self.is_cancelled, decoupled=self._batch.decoupled
        )

    def is_cancelled(self) -> bool:
        return self._batch.is_cancelled(self.member)

    def on_control(self, kind: int) -> None:
        if kind == PAUSE:
            self.resumed = self.resumed or threading.Event()
            self.resumed.clear()
        elif self.resumed is not None:
            self.resumed.set()

    def _send(self, response: InferenceResponse | None, final: bool) -> None:
        """Send a response from any thread; waits while the client cannot keep up."""
        if self.resumed is not None and self.member not in self._batch.cancelled:
            self.resumed.wait()
        if response is None:
            reply = wire.Reply(self.member, wire.EMPTY, b"", ())
        else:
            buffer = self._batch.output_buffers.get(self.member)
            reply = reply_of(self.member, self._outputs, response, buffer)
        self.responded = final
        if final:
            shares = self.member in self._batch.mapped_members
            self._batch.send_replies([reply], self._batch.inputs if shares else None)
        else:
            self._batch.send_replies([reply._replace(flags=reply.flags | wire.MORE)])

    def __del__(self) -> None:
        # The model holds neither the request nor its sender, so no response can come any more.
        if not self.responded and self._batch.returned:
            text = "the model let go of a request without sending a final response"
            if self.rescheduled:
                if self._batch.iterative:
                    return
                text = NOT_RESCHEDULED
            self.responded = True
            with contextlib.suppress(wire.LostError, OSError):
                self._batch.send_from_finalizer(failure(self.member, TritonError(text)))


class BatchExecution:
    """A batch in execution, and afterwards while some of its requests are open."""

    def __init__(
        self,
        number: int,
        sink: ReplySink,
        poll_controls: Callable[[], None],
        *,
        decoupled: bool,
        iterative: bool = False,
    ) -> None:
        """poll_controls: reads controls that have arrived and passes them to on_control.
        iterative: its requests may be rescheduled.
        """
        self.number = number
        self._sink = sink
        self._poll_controls = poll_controls
        self.decoupled = decoupled
        self.iterative = iterative
        # The outputs that each member's client requested.
        self.requested_outputs: list[frozenset[str]] = []
        # The requests that execute() will get, and their members; and the replies to requests that
        # it does not get.
        self.requests: list[InferenceRequest] = []
        self.members: list[int] = []
        self.rejected: list[wire.Reply] = []
        # The inputs that are mapped, the members that they belong to, and by member the segments
        # that outputs may be written to.
        self.inputs: MappedInputs | None = None
        self.mapped_members: set[int] = set()
        self.output_buffers: dict[int, wire.Range] = {}
        self.cancelled: set[int] = set()
        # The latest deadline of its requests (time.monotonic_ns); 0: one has none.
        self.deadline_ns = 0
        # execute() has returned.
        self.returned = False
        # States while execute() runs. Afterwards only the model holds them, through senders.
        self.held: dict[int, RequestState] = {}
        self._open_requests: weakref.WeakValueDictionary[int, RequestState] | None = None

    def state_of(self, request: InferenceRequest) -> RequestState:
        """A request's state; decoupled models have one for each request, others on demand."""
        if request._state is None:
            member = request._member
            self.add_state(request, RequestState(self, member, self.requested_outputs[member]))
        return request._state  # type: ignore[return-value]  # set by this function alone

    def add_state(self, request: InferenceRequest, state: RequestState) -> None:
        """Hold a request's state while execute() runs."""
        request._state = self.held[request._member] = state
        if self._open_requests is None:
            self._open_requests = weakref.WeakValueDictionary()
        self._open_requests[request._member] = state

    @property
    def has_open_requests(self) -> bool:
        """Whether response senders may still send for it."""
        return bool(self._open_requests)

    def map_input(self, member: int, place: wire.Range) -> memoryview:
        """An input in a segment; raises TritonModelException if the segment no longer exists."""
        copied = shared_tensors.copy_of(place)
        if copied is not None:
            return copied
        if self.inputs is None:
            self.inputs = shared_tensors.MappedInputs()
        self.mapped_members.add(member)
        return self.inputs.view(place)

    def is_cancelled(self, member: int) -> bool:
        if member not in self.cancelled:
            self._poll_controls()
        return member in self.cancelled

    def on_control(self, member: int, kind: int) -> None:
        if kind == CANCEL:
            self.cancelled.add(member)
        state = None if self._open_requests is None else self._open_requests.get(member)
        if state is not None:
            state.on_control(kind)

    def send_replies(self, replies: list[wire.Reply], inputs: MappedInputs | None = None) -> None:
        self._sink.send_replies(self.number, replies, inputs)

    def send_from_finalizer(self, reply: wire.Reply) -> None:
        self._sink.send_from_finalizer(self.number, reply)

    def finish(self, replies: list[wire.Reply]) -> None:
        """Send the replies that execute() returned; other members respond by senders."""
        self.mark_responded(replies)
        self._sink.send_replies(self.number, replies, self.inputs, executed=True)
        self.release_requests()

    def mark_responded(self, replies: Sequence[wire.Reply]) -> None:
        """execute() returned these replies: senders that the model got are of no use any more."""
        held = self.held
        if held:
            for reply in replies:
                if reply[0] in held:
                    held[reply[0]].responded = True

    def release_requests(self) -> None:
        """execute() has returned: from now on only the model holds requests' states."""
        self.returned = True
        self.held = {}


def reply_of(
    member: int,
    requested_outputs: frozenset[str],
    response: InferenceResponse,
    buffer: wire.Range | None = None,
) -> wire.Reply:
    """A response on the wire, as a final one. buffer: a segment that outputs may be written to."""
    if response._error is not None:
        return failure(member, response._error, by_model=True)
    about = []
    raws = []
    for tensor in response._output_tensors:
        if tensor._name in requested_outputs:
            about.append((tensor._name, tensor._datatype, tensor._shape))
            raws.append(tensor.raw())
    meta = _meta_of(tuple(about))
    if response._parameters:
        meta = b'{"outputs":%b,"parameters":%b}' % (meta, response._parameters.encode())
    tensors = raws if buffer is None else shared_tensors.write_outputs(raws, buffer)
    # Quicker than calling the class.
    return _new_tuple(wire.Reply, (member, 0, meta, tensors))


def failure(member: int, error: TritonError, *, by_model: bool = False) -> wire.Reply:
    """An error on the wire. by_model: it is the model's response, not a failure to make one."""
    meta = json.dumps([error.code().name, error.message(), by_model]).encode()
    return wire.Reply(member, wire.ERROR, meta, ())


def _meta_of(key: Any) -> bytes:
    meta = _metas.get(key)
    if meta is None:
        if len(_metas) >= _MOST_METAS:
            _metas.clear()
        meta = _metas[key] = json.dumps(key).encode()
    return meta


def check_response(response: Any, state: RequestState | None) -> None:
    """Raise ModelMisuse if execute() may not return this for a request."""
    has_sender = state is not None and state.has_sender
    rescheduled = state is not None and state.rescheduled
    if rescheduled and response is not None:
        # Triton's text, with its typing error.
        raise ModelMisuse(
            "Expected a None object in the execute function return list for reschduled request, "
            f"found type '{type(response)}'."
        )
    if response is None:
        if not has_sender and not rescheduled:
            raise ModelMisuse(
                "Expected an 'InferenceResponse' object in the execute function return list, found "
                "None for a request whose response sender was not used."
            )
    elif not isinstance(response, InferenceResponse):
        raise ModelMisuse(
            "Expected an 'InferenceResponse' object in the execute function return list, found "
            f"type '{type(response)}'."
        )
    elif state is not None and has_sender and state.responded:
        raise ModelMisuse(
            "Expected a None object in the execute function return list for a request that was "
            "answered by its response sender."
        )
