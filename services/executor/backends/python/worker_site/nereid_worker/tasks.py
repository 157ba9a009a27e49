"""The requests that a worker is executing, each until its last answer."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from typing import TYPE_CHECKING, Any

from . import memory, wire
from .errors import TritonError
from .responses import InferenceResponse, InferenceResponseSender
from .texts import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .channel import Channel
    from .requests import InferenceRequest

# Outputs' shapes may vary without end.
_MOST_METAS = 1024
_metas: dict[Any, bytes] = {}

# What comes of a request that its model would have executed again.
NOT_RESCHEDULED = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not "
    "configured to handle such a flag."
)


class Task:
    """Answers one member of a batch by senders, also after execute() has returned."""

    __slots__ = (
        "__weakref__",
        "_batch",
        "_outputs",
        "flowing",
        "has_sender",
        "member",
        "rescheduled",
        "responded",
    )

    def __init__(self, batch: Execution, member: int, outputs: frozenset[str]) -> None:
        self._batch = batch
        self._outputs = outputs
        self.member = member
        # Its last answer is on its way.
        self.responded = False
        # Cleared while its client cannot keep up; there from the first time on.
        self.flowing: threading.Event | None = None
        self.has_sender = False
        # The model wants to have it again.
        self.rescheduled = False

    def sender(self) -> InferenceResponseSender:
        """What answers it; not kept here, so that it goes when the model lets go of it."""
        self.has_sender = True
        return InferenceResponseSender(
            self._deliver, self.is_cancelled, decoupled=self._batch.decoupled
        )

    def is_cancelled(self) -> bool:
        return self._batch.is_cancelled(self.member)

    def control(self, kind: int) -> None:
        """What has become of it elsewhere; kinds as in MemberControl."""
        if kind == PAUSE:
            self.flowing = self.flowing or threading.Event()
            self.flowing.clear()
        elif self.flowing is not None:
            self.flowing.set()

    def _deliver(self, response: InferenceResponse | None, final: bool) -> None:
        """Send a response from wherever it was made; waits for a client that cannot keep up."""
        if self.flowing is not None and self.member not in self._batch.cancelled:
            self.flowing.wait()
        if response is None:
            reply = wire.Reply(self.member, wire.EMPTY, b"", ())
        else:
            room = self._batch.rooms.get(self.member)
            reply = reply_of(self.member, self._outputs, response, room)
        self.responded = final
        if final:
            keeping = self._batch.inputs if self.member in self._batch.sharing else None
            self._batch.send([reply], keeping=keeping)
        else:
            self._batch.send([reply._replace(flags=reply.flags | wire.MORE)])

    def __del__(self) -> None:
        # The model holds neither request nor sender any more: nobody else will answer.
        if not self.responded and self._batch.returned:
            text = "the model let go of a request without sending a final response"
            if self.rescheduled:
                text = NOT_RESCHEDULED
            self.responded = True
            with contextlib.suppress(wire.LostError, OSError):
                self._batch.give_up(failure(self.member, TritonError(text)))


CANCEL, PAUSE, RESUME = 0, 1, 2


class Execution:
    """A batch under way; its tasks look after themselves once execute() has returned."""

    __slots__ = (
        "__weakref__",
        "_channel",
        "_look",
        "_open",
        "cancelled",
        "decoupled",
        "held",
        "inputs",
        "members",
        "number",
        "refusals",
        "requests",
        "returned",
        "rooms",
        "sharing",
        "wanted",
    )

    def __init__(
        self, number: int, channel: Channel, look: Callable[[], None], *, decoupled: bool
    ) -> None:
        """look: sees whether there is news of requests."""
        self.number = number
        self._channel = channel
        self._look = look
        self.decoupled = decoupled
        # By member: the outputs that it wants.
        self.wanted: list[frozenset[str]] = []
        # Until execute() gets them; where they stood; and replies to those that it does not get.
        self.requests: list[InferenceRequest] = []
        self.members: list[int] = []
        self.refusals: list[wire.Reply] = []
        # Inputs in shared memory, whose they are, and where outputs may be put.
        self.inputs: memory.Inputs | None = None
        self.sharing: set[int] = set()
        self.rooms: dict[int, wire.Range] = {}
        # Members for whose answers nobody waits.
        self.cancelled: set[int] = set()
        # execute() has returned.
        self.returned = False
        # The tasks while execute() runs. Later only the model holds them, with senders.
        self.held: dict[int, Task] = {}
        self._open: weakref.WeakValueDictionary[int, Task] | None = None

    def task(self, request: InferenceRequest) -> Task:
        """A request's task: there is one for each request of decoupled models, else where asked."""
        if request._task is None:
            member = request._member
            task = request._task = self.held[member] = Task(self, member, self.wanted[member])
            if self._open is None:
                self._open = weakref.WeakValueDictionary()
            self._open[member] = task
        return request._task

    @property
    def left_open(self) -> bool:
        """Whether the model may answer some of it by senders."""
        return bool(self._open)

    def view(self, member: int, place: wire.Range) -> memoryview:
        """An input that lies in shared memory; raises TritonModelException if it is gone."""
        if self.inputs is None:
            self.inputs = memory.Inputs()
        self.sharing.add(member)
        return self.inputs.view(place)

    def is_cancelled(self, member: int) -> bool:
        if member not in self.cancelled:
            self._look()
        return member in self.cancelled

    def control(self, member: int, kind: int) -> None:
        """What has become of a member elsewhere."""
        if kind == CANCEL:
            self.cancelled.add(member)
        task = None if self._open is None else self._open.get(member)
        if task is not None:
            task.control(kind)

    def send(
        self,
        replies: list[wire.Reply],
        flags: int = 0,
        keeping: memory.Inputs | None = None,
    ) -> None:
        """Send what is in the list, which is empty then. keeping: what the replies may be made of,
        and what is somebody else's as soon as they are sent.
        """
        parts = wire.responses_parts(self.number, flags, replies)
        replies.clear()
        if keeping is not None:
            parts = [b"".join(parts)]
            keeping.keep()
        self._channel.send(wire.RESPONSES, parts)

    def give_up(self, reply: wire.Reply) -> None:
        """Send a reply that nobody else will; for finalisers."""
        parts = wire.responses_parts(self.number, 0, [reply])
        self._channel.send_at_leisure(wire.RESPONSES, parts)

    def finish(self, replies: list[wire.Reply]) -> None:
        """Send the replies that execute() returned; who has none answers by a sender."""
        self.settle(replies)
        self.send(replies, wire.FREE, self.inputs)
        self.let_go()

    def settle(self, replies: Sequence[wire.Reply]) -> None:
        """These are the answers to their requests, whatever senders there are."""
        held = self.held
        if held:
            for reply in replies:
                if reply[0] in held:
                    held[reply[0]].responded = True

    def let_go(self) -> None:
        """execute() has returned and is answered for: from now on only the model holds tasks."""
        self.returned = True
        self.held = {}


def reply_of(
    member: int,
    wanted: frozenset[str],
    response: InferenceResponse,
    room: wire.Range | None = None,
) -> wire.Reply:
    """A response as it travels, but whether it is the last. room: where outputs may be put."""
    if response._error is not None:
        return failure(member, response._error)
    about = []
    raws = []
    for tensor in response._output_tensors:
        if tensor._name in wanted:
            about.append((tensor._name, tensor._datatype, tensor._shape))
            raws.append(tensor.raw())
    meta = _meta(tuple(about))
    if response._parameters:
        meta = b'{"outputs":%b,"parameters":%b}' % (meta, response._parameters.encode())
    return wire.Reply(member, 0, meta, raws if room is None else memory.put(raws, room))


def failure(member: int, error: TritonError) -> wire.Reply:
    """An error as it travels."""
    meta = json.dumps([error.code().name, error.message()]).encode()
    return wire.Reply(member, wire.ERROR, meta, ())


def _meta(key: Any) -> bytes:
    meta = _metas.get(key)
    if meta is None:
        if len(_metas) >= _MOST_METAS:
            _metas.clear()
        meta = _metas[key] = json.dumps(key).encode()
    return meta


def check_response(response: Any, task: Task | None) -> None:
    """Raise Refusal if a request cannot be answered by this, which execute() returned for it."""
    has_sender = task is not None and task.has_sender
    rescheduled = task is not None and task.rescheduled
    if rescheduled and response is not None:
        # Triton's words, with its slip.
        raise Refusal(
            "Expected a None object in the execute function return list for reschduled request, "
            f"found type '{type(response)}'."
        )
    if response is None:
        if not has_sender and not rescheduled:
            raise Refusal(
                "Expected an 'InferenceResponse' object in the execute function return list, found "
                "None for a request whose response sender was not used."
            )
    elif not isinstance(response, InferenceResponse):
        raise Refusal(
            "Expected an 'InferenceResponse' object in the execute function return list, found "
            f"type '{type(response)}'."
        )
    elif task is not None and has_sender and task.responded:
        raise Refusal(
            "Expected a None object in the execute function return list for a request that was "
            "answered by its response sender."
        )
