"""The requests that a worker is executing, each until its last answer."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any

from . import memory, wire
from .errors import TritonError
from .responses import InferenceResponseSender

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .responses import InferenceResponse

# Outputs' shapes may vary without end.
_MOST_METAS = 1024
_metas: dict[Any, bytes] = {}


class Task:
    """One member of one batch."""

    __slots__ = (
        "__weakref__",
        "_batch",
        "_outputs",
        "answered",
        "cancelled",
        "flowing",
        "has_sender",
        "inputs",
        "member",
        "room",
    )

    def __init__(self, batch: Execution, member: int, outputs: frozenset[str]) -> None:
        self._batch = batch
        self._outputs = outputs
        self.member = member
        # Its last answer is on its way.
        self.answered = False
        self.cancelled = False
        # Cleared while its client cannot keep up; there from the first time on.
        self.flowing: threading.Event | None = None
        self.has_sender = False
        # Those of its inputs that lie in shared memory, and where its outputs may.
        self.inputs: memory.Inputs | None = None
        self.room: wire.Range | None = None

    def sender(self) -> InferenceResponseSender:
        """What answers it; not kept here, so that it goes when the model lets go of it."""
        self.has_sender = True
        return InferenceResponseSender(
            self._deliver, self.is_cancelled, decoupled=self._batch.decoupled
        )

    def is_cancelled(self) -> bool:
        if not self.cancelled:
            self._batch.look()
        return self.cancelled

    def control(self, kind: int) -> None:
        """What has become of it elsewhere; kinds as in MemberControl."""
        if kind == CANCEL:
            self.cancelled = True
        if kind == PAUSE:
            self.flowing = self.flowing or threading.Event()
            self.flowing.clear()
        elif self.flowing is not None:
            self.flowing.set()

    def reply(self, response: InferenceResponse) -> wire.Reply:
        """A response as it travels, but whether it is the last."""
        error = response.error()
        if error is not None:
            return failure(self.member, error)
        wanted = self._outputs
        tensors = [each for each in response.output_tensors() if each._name in wanted]
        meta = _meta(tuple((each._name, each._datatype, each._shape) for each in tensors))
        parameters = response.parameters()
        if parameters:
            meta = b'{"outputs":' + meta + b',"parameters":' + parameters.encode() + b"}"
        raws: Sequence[Any] = [each.raw() for each in tensors]
        if self.room is not None:
            raws = memory.put(raws, self.room)
        return wire.Reply(self.member, 0, meta, raws)

    def _deliver(self, response: InferenceResponse | None, final: bool) -> None:
        """Send a response from wherever it was made; waits for a client that cannot keep up."""
        if self.flowing is not None and not self.cancelled:
            self.flowing.wait()
        if response is None:
            reply = wire.Reply(self.member, wire.EMPTY, b"", ())
        else:
            reply = self.reply(response)
        self.answered = final
        if final:
            self._batch.send([reply], keeping=self.inputs)
        else:
            self._batch.send([reply._replace(flags=reply.flags | wire.MORE)])

    def __del__(self) -> None:
        # The model holds neither request nor sender any more: nobody else will answer.
        if not self.answered and self._batch.returned:
            text = "the model let go of a request without sending a final response"
            self.answered = True
            with contextlib.suppress(wire.LostError, OSError):
                self._batch.send([failure(self.member, TritonError(text))])


CANCEL, PAUSE, RESUME = 0, 1, 2


class Execution:
    """A batch under way; its tasks look after themselves once execute() has returned."""

    def __init__(
        self, number: int, channel: wire.Channel, look: Callable[[], None], *, decoupled: bool
    ) -> None:
        self._number = number
        self._channel = channel
        self.look = look
        self.decoupled = decoupled
        # execute() has returned.
        self.returned = False

    def send(
        self,
        replies: list[wire.Reply],
        flags: int = 0,
        keeping: memory.Inputs | None = None,
    ) -> None:
        """Send what is in the list, which is empty then. keeping: what the replies may be made of,
        and what is somebody else's as soon as they are sent.
        """
        parts = wire.answers_parts(self._number, flags, replies)
        replies.clear()
        if keeping is not None:
            parts = [b"".join(parts)]
            keeping.keep()
        self._channel.send(wire.ANSWERS, parts)


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
