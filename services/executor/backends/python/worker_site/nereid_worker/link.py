"""The worker's one connection to its executor, for whatever needs it."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from . import memory, wire
from .channel import is_forked
from .errors import TritonModelException
from .segments import Segments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .channel import Channel
    from .segments import Lease

    OnResponse = Callable[[wire.Call], None]

# Answers that a model holds beyond so many are copied, so that their owners have their memory back.
_MOST_BORROWED = 64


class _Asked:
    """A call, until its last answer."""

    __slots__ = ("lease", "on_response", "responded")

    def __init__(self, on_response: OnResponse, lease: Lease | None) -> None:
        self.on_response = on_response
        # The memory that its tensors lie in, if they are large.
        self.lease = lease
        self.responded = False


class Link:
    """Sends, from any thread, what is no answer: logs, metrics, and calls to the mesh."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        # Whether log_verbose is worth sending.
        self.verbose = False
        self.model_dir = ""
        self.instance = ""
        # Has the answers to calls read while the caller waits; None: nothing can be asked.
        self.attend: Callable[[], None] | None = None
        # What is to be told of whoever asks.
        self.asker: Callable[[], dict[str, Any]] = dict
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Asked] = {}
        # For the tensors of requests.
        self.segments = Segments(0)
        # Answers that the model holds in somebody else's memory, by the segments' names.
        self._borrowed: set[str] = set()
        self._lock = threading.Lock()

    def tell(self, kind: int, message: Any, *, finalising: bool = False) -> None:
        if is_forked():
            return
        send = self.channel.send_at_leisure if finalising else self.channel.send
        send(kind, [json.dumps(message).encode()])

    def call(self, about: dict[str, Any], tensors: Sequence[Any], on_response: OnResponse) -> int:
        """Ask for something; on_answer is called by the thread that reads, until the last answer.

        Raises:
            TritonModelException: there is nobody to ask.
        """
        if self.attend is None:
            raise TritonModelException("this only works in a model that is being served")
        if is_forked():
            raise TritonModelException("this does not work in a process that the model has forked")
        self.attend()
        lease = self.segments.lend(tensors) if about["what"] == "infer" else None
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = _Asked(on_response, lease)
        try:
            tensors = tensors if lease is None else lease.places
            call = wire.Call(number, 0, json.dumps(about).encode(), tensors)
            self.channel.send(wire.CALL, wire.call_parts(call))
        except wire.WireError as error:
            del self._calls[number]
            raise TritonModelException(str(error)) from error
        return number

    def abandon(self, number: int) -> None:
        """As forget, and nobody needs to go on with it; for finalisers."""
        self.forget(number)
        self._say({"what": "cancel", "call": number})

    def _say(self, about: dict[str, Any]) -> None:
        """What needs no answer; also for finalisers."""
        call = wire.Call(next(self._numbers), 0, json.dumps(about).encode(), ())
        self.channel.send_at_leisure(wire.CALL, wire.call_parts(call))

    def forget(self, number: int) -> None:
        """No answers are wanted any more."""
        self._calls.pop(number, None)

    def responded(self, body: bytearray) -> None:
        """Hand an answer to whoever asked."""
        response = wire.read_call(body)
        if wire.Range in map(type, response.tensors):
            response = self._borrow(response)
        last = not response.flags & wire.MORE
        asked = self._calls.get(response.number)
        if asked is None:
            return
        if last:
            self.forget(response.number)
            # Otherwise somebody may yet be reading it, for a response that nobody waits for.
            if asked.lease is not None and not (asked.responded or response.flags & wire.ERROR):
                asked.lease.free()
        asked.responded = True
        asked.on_response(response)

    def _borrow(self, response: wire.Call) -> wire.Call:
        """An answer with its tensors in place, for as long as somebody has them."""
        segment_name = response.tensors[0].segment
        self._borrowed.add(segment_name)
        try:
            tensors = memory.borrowed(response.tensors, partial(self._give_back, segment_name))
        except TritonModelException:
            self._give_back(segment_name)
            meta = json.dumps(["UNAVAILABLE", "the executor was lost with its answer"]).encode()
            return wire.Call(response.number, response.flags | wire.ERROR, meta, ())
        if len(self._borrowed) > _MOST_BORROWED:
            return response._replace(tensors=[bytearray(each) for each in tensors])
        return response._replace(tensors=tensors)

    def _give_back(self, segment_name: str) -> None:
        self._borrowed.discard(segment_name)
        with contextlib.suppress(wire.LostError, OSError):
            self._say({"what": "release", "segment_name": segment_name})


_link: Link | None = None


def connect(link: Link) -> None:
    """From now on this is the link."""
    global _link  # noqa: PLW0603 - a process has one
    _link = link


def link() -> Link:
    """The link; raises TritonModelException outside of a worker."""
    if _link is None:
        raise TritonModelException("this only works inside a model that is being served")
    return _link
