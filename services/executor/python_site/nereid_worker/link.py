"""The worker's one connection to its executor, for whatever needs it."""

from __future__ import annotations

import itertools
import json
import threading
from typing import TYPE_CHECKING, Any

from . import wire
from .channel import is_forked
from .errors import TritonModelException

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .channel import Channel

    OnAnswer = Callable[[wire.Call], None]


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
        self._numbers = itertools.count(1)
        self._calls: dict[int, OnAnswer] = {}
        self._lock = threading.Lock()

    def tell(self, kind: int, message: Any, *, finalising: bool = False) -> None:
        if is_forked():
            return
        send = self.channel.send_at_leisure if finalising else self.channel.send
        send(kind, [json.dumps(message).encode()])

    def call(self, about: dict[str, Any], tensors: Sequence[Any], on_answer: OnAnswer) -> int:
        """Ask for something; on_answer is called by the thread that reads, until the last answer.

        Raises:
            TritonModelException: there is nobody to ask.
        """
        if self.attend is None:
            raise TritonModelException("this only works in a model that is being served")
        if is_forked():
            raise TritonModelException("this does not work in a process that the model has forked")
        self.attend()
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = on_answer
        try:
            call = wire.Call(number, 0, json.dumps(about).encode(), tensors)
            self.channel.send(wire.CALL, wire.call_parts(call))
        except wire.WireError as error:
            del self._calls[number]
            raise TritonModelException(str(error)) from error
        return number

    def abandon(self, number: int) -> None:
        """As forget, and nobody needs to go on with it; for finalisers."""
        self.forget(number)
        meta = json.dumps({"what": "cancel", "call": number}).encode()
        parts = wire.call_parts(wire.Call(next(self._numbers), 0, meta, ()))
        self.channel.send_at_leisure(wire.CALL, parts)

    def forget(self, number: int) -> None:
        """No answers are wanted any more."""
        self._calls.pop(number, None)

    def answered(self, body: bytearray) -> None:
        """Hand an answer to whoever asked."""
        answer = wire.read_call(body)
        last = not answer.flags & wire.MORE
        on_answer = self._calls.get(answer.number)
        if last:
            self.forget(answer.number)
        if on_answer is not None:
            on_answer(answer)


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
