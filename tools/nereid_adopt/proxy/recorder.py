"""Calls that are to be compared, on their way to the process that sends the copies."""

# layout: compiled

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Mapping  # noqa: TC003 - mypyc reads the fields' types
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.core.errors import Unavailable
from nereid_adopt.calls.traffic import SequenceStep, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nereid.comparison.process import ReportProcess
    from nereid_adopt.calls.requests import RequestFacts

BROKEN_SEQUENCE: Final = "a request of its sequence was not copied"
LOST: Final = "the process of copies died"
REUSED_ID: Final = "the weight changed while copies with its sequence's id were on their way"
NO_REGION: Final = "its shared memory cannot be read"
# Larger pieces of content are neither sliced nor pickled: that would copy them.
MIN_BUFFER_BYTES: Final = 8192
_MAX_DRAIN_S: Final = 2.0
_MAX_BROKEN: Final = 100_000
_MAX_COUNTS: Final = 1000
# Size of a call without its contents, about.
_OVERHEAD_BYTES: Final = 1000
# Calls are handed to the process when clients have their responses: so many, or after this time.
_MAX_WAITING: Final = 64
_WAIT_S: Final = 0.005
_OTHER: Final = "(other)"
_NOTHING: Final[Mapping[str, bytes]] = {}


# Content as it arrived. Large pieces reach the process of copies without a copy of their own.
Pieces = tuple["bytes | PickleBuffer", ...]


def pieces_of(content: Sequence[bytes | memoryview]) -> Pieces:
    """Return content as a call has it."""
    if len(content) == 1:
        return (piece_of(content[0]),)
    return tuple([piece_of(piece) for piece in content])


def piece_of(piece: bytes | memoryview) -> bytes | PickleBuffer:
    """Return a piece of content as a call has it."""
    if len(piece) >= MIN_BUFFER_BYTES:
        return PickleBuffer(piece)
    return piece if isinstance(piece, bytes) else bytes(piece)


# Calls and replies are no named tuples, which are made by interpreted code.
class HttpReply:
    """Response of one server over HTTP.

    json_bytes: length of the JSON, 0 if all of it is. encoding: its `Content-Encoding`.
    """

    def __init__(self, status: int, body: Pieces, json_bytes: int = 0, encoding: str = "") -> None:
        self.status = status
        self.body = body
        self.json_bytes = json_bytes
        self.encoding = encoding


class GrpcReply:
    """Response of one server over gRPC: the pieces of a message, or a status that is not OK."""

    def __init__(self, message: Pieces | None, status: str = "", text: str = "") -> None:
        self.message = message
        self.status = status
        self.text = text


class CopiedCall:
    """A call that one server has responded to, and that the other one is to get as well.

    path: HTTP's target, or gRPC's path. headers: HTTP's headers, or gRPC's metadata. inputs,
    outputs: contents of shared memory by tensor, which the copy has inline.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (most by keyword)
        self,
        model: str,
        side: Side,
        path: str,
        headers: tuple[tuple[bytes, bytes], ...],
        request: Pieces,
        reply: HttpReply | GrpcReply,
        latency_s: float,
        step: SequenceStep | None = None,
        json_bytes: int = 0,
        encoding: str = "",
        inputs: Mapping[str, bytes] = _NOTHING,
        outputs: Mapping[str, bytes] = _NOTHING,
        number: int = 0,
    ) -> None:
        self.model = model
        self.side = side
        self.path = path
        self.headers = headers
        self.request = request
        self.reply = reply
        self.latency_s = latency_s
        self.step = step
        self.json_bytes = json_bytes
        self.encoding = encoding
        self.inputs = inputs
        self.outputs = outputs
        # A sequence's request has a number, larger than those before it.
        self.number = number

    def fields(self) -> tuple[object, ...]:
        """Return the argument of from_fields(), with few objects: each costs when it is pickled."""
        reply = self.reply
        if isinstance(reply, HttpReply):
            status: int | str = reply.status
            content: Pieces | None = reply.body
            json_bytes, text = reply.json_bytes, reply.encoding
        else:
            status, content, json_bytes, text = reply.status, reply.message, 0, reply.text
        return (
            status,
            _packed(content),
            json_bytes,
            text,
            self.model,
            int(self.side),
            self.path,
            self.headers,
            _packed(self.request),
            self.latency_s,
            self.step,
            self.json_bytes,
            self.encoding,
            self.inputs or None,
            self.outputs or None,
            self.number,
        )

    @staticmethod
    def from_fields(fields: tuple[Any, ...]) -> CopiedCall:
        """Return the call whose fields() these are."""
        status, content, reply_json_bytes, text, model, side, path, headers, request = fields[:9]
        latency_s, step, json_bytes, encoding, inputs, outputs, number = fields[9:]
        pieces = _unpacked(content)
        if isinstance(status, str):
            reply: HttpReply | GrpcReply = GrpcReply(pieces, status, text)
        else:
            reply = HttpReply(status, pieces or (), reply_json_bytes, text)
        return CopiedCall(
            model,
            Side(side),
            path,
            headers,
            _unpacked(request) or (),
            reply,
            latency_s,
            step,
            json_bytes,
            encoding,
            inputs or _NOTHING,
            outputs or _NOTHING,
            number,
        )


def _packed(pieces: Pieces | None) -> object:
    return pieces[0] if pieces is not None and len(pieces) == 1 else pieces


def _unpacked(content: Any) -> Pieces | None:
    return content if content is None or isinstance(content, tuple) else (content,)


class StreamEvent(NamedTuple):
    """An event of a stream: a request or a response (with a message), its begin, or its end."""

    stream: int
    side: Side
    kind: str
    message: bytes = b""
    path: str = ""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    model: str = ""


@dataclass(frozen=True, slots=True)
class DrainQuestion:
    """Question that is replied to when all earlier copies have ended."""


class Recorder:
    """Sender of calls to the process of copies. It never waits.

    responses: number of calls by the side that responded, in the order of Side. not_sampled: number
    of inferences that were not to be copied. not_copied: number of others, by model and reason.
    """

    def __init__(self, process: ReportProcess) -> None:
        self._process = process
        self.responses = [0 for _ in Side]
        self.failovers = 0
        self.failures = 0
        self.not_sampled = 0
        self.not_copied: Counter[tuple[str, str]] = Counter()
        self.changes: Counter[tuple[str, bool]] = Counter()
        # Copies by model that the process got and no checkpoint has.
        self._unsettled: dict[str, int] = {}
        self._last_stream = self._last_lost_stream = -1
        self._abandoned: list[int] = []
        # Sequences of which a request was not copied.
        self._broken: set[tuple[str, str]] = set()
        self._waiting: list[Callable[[], None]] = []
        # Sequences with copies on their way, by key: number of the last one, in this order.
        self._copied_sequences: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._last_number = 0
        self._draining: asyncio.Future[None] | None = None

    def may_copy(self, model: str, facts: RequestFacts) -> bool:
        """Return whether a request's copy would be complete, so far as its sequence goes."""
        step = facts.step
        if step is None:
            return True
        if step.start:
            self._broken.discard(step.key)
        if step.key not in self._broken:
            return True
        self._count_not_copied(model, BROKEN_SEQUENCE)
        if step.end:
            self._broken.discard(step.key)
        return False

    def is_broken(self, step: SequenceStep) -> bool:
        """Return whether a request of a sequence was not copied."""
        return step.key in self._broken

    def break_sequence(self, step: SequenceStep | None) -> None:
        """Note that a request of a sequence is not copied."""
        if step is None:
            return
        if step.end:
            self._broken.discard(step.key)
        elif len(self._broken) < _MAX_BROKEN:
            self._broken.add(step.key)

    def record_later(self, record: Callable[[], None]) -> None:
        """Call record() soon, when it delays no response."""
        self._waiting.append(record)
        if len(self._waiting) >= _MAX_WAITING:
            self._record_waiting()
        elif len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(_WAIT_S, self._record_waiting)

    def _record_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            record()

    def submit(self, call: CopiedCall, size_bytes: int) -> None:
        """Queue a call, or count it if the queue is full; size_bytes: of request and response."""
        size_bytes += _OVERHEAD_BYTES
        for contents in (call.inputs, call.outputs):
            if contents:
                size_bytes += sum(map(len, contents.values()))
        if call.step is not None:
            call.number = self._last_number + 1
        if self._process.submit(call.model, call.fields(), size_bytes):
            self._count_sent(call.model)
            if call.step is not None:
                self._last_number = call.number
                self._copied_sequences[call.step.key] = call.number
                self._copied_sequences.move_to_end(call.step.key)
        else:
            self.break_sequence(call.step)

    def submit_event(self, event: StreamEvent) -> bool:
        """Queue an event of a stream; return False if the queue is full, or its copy is lost."""
        if event.stream <= self._last_lost_stream:
            return False
        size = _OVERHEAD_BYTES + len(event.message)
        if not (self._report_abandoned() and self._process.submit(event.model, event, size)):
            return False
        self._last_stream = max(self._last_stream, event.stream)
        if event.kind == "request":
            self._count_sent(event.model)
        return True

    def on_process_lost(self, open_sequences: Iterable[tuple[str, str]]) -> None:
        """Count the copies that the process got since the last checkpoint: nobody compares them.

        Called when the process gets no more of them.
        """
        self.on_checkpoint()
        for model, number in self._unsettled.items():
            if number > 0:
                self._count_not_copied(model, LOST, number)
        self._unsettled.clear()
        self._copied_sequences.clear()
        self._abandoned.clear()
        self._last_lost_stream = self._last_stream
        # Copies of their next requests might lack the ones before.
        self._broken.update(islice(open_sequences, max(0, _MAX_BROKEN - len(self._broken))))

    def on_checkpoint(self) -> None:
        """Count the copies that a checkpoint has."""
        for model, number in self._process.take_settled().items():
            name = model if model in self._unsettled else _OTHER
            self._unsettled[name] = self._unsettled.get(name, 0) - number
        sequences = self._copied_sequences
        while sequences and next(iter(sequences.values())) <= self._process.settled_through:
            sequences.popitem(last=False)

    def has_copies(self, key: tuple[str, str]) -> bool:
        """Return whether copies of unary requests of sequences with a key may be on their way."""
        self._record_waiting()
        return key in self._copied_sequences

    def skip(self, model: str, reason: str, step: SequenceStep | None = None) -> None:
        """Count a request that has no copy."""
        self._count_not_copied(model, reason)
        self.break_sequence(step)

    def abandon_stream(self, stream: int) -> None:
        """Have the copy of a stream ended, because one of its events is missing."""
        self._abandoned.append(stream)
        self._report_abandoned()

    def _report_abandoned(self) -> bool:
        while self._abandoned:
            event = StreamEvent(self._abandoned[-1], Side.OLD, "abandon")
            if not self._process.submit("", event, _OVERHEAD_BYTES):
                return False
            self._abandoned.pop()
        return True

    def note_change(self, name: str, *, ok: bool) -> None:
        """Count a change; ok: whether it had the same outcome at both servers."""
        if (name, ok) not in self.changes and len(self.changes) >= _MAX_COUNTS:
            name = _OTHER
        self.changes[name, ok] += 1

    async def drain(self) -> None:
        """Wait until the copies of all earlier calls have ended, for two seconds at most."""
        self._record_waiting()
        # Not cancelled at the limit: the reply to come must not be taken for another one.
        if self._draining is None or self._draining.done():
            self._draining = asyncio.ensure_future(self._ask_drained())
        await asyncio.wait({self._draining}, timeout=_MAX_DRAIN_S)

    async def _ask_drained(self) -> None:
        with suppress(Unavailable):
            await self._process.ask_in_order(DrainQuestion())

    def _count_sent(self, model: str) -> None:
        number = self._unsettled.get(model)
        if number is None:
            if len(self._unsettled) >= _MAX_COUNTS:
                model = _OTHER
            number = self._unsettled.get(model, 0)
        self._unsettled[model] = number + 1

    def _count_not_copied(self, model: str, reason: str, number: int = 1) -> None:
        # Clients may name any models.
        if (model, reason) not in self.not_copied and len(self.not_copied) >= _MAX_COUNTS:
            model = _OTHER
        self.not_copied[model, reason] += number
