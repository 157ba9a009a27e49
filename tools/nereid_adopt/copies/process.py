"""Copies in flight, and the comparison of their responses."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from nereid.comparison.responses import Exchange
from nereid.comparison.tally import Tally, TallyOptions
from nereid_adopt.calls.requests import decoded
from nereid_adopt.calls.traffic import Side
from nereid_adopt.copies.decoding import grpc_inputs, grpc_response, http_inputs, http_response
from nereid_adopt.copies.sender import CopySender, NotCopiedError
from nereid_adopt.copies.streams import StreamCopy
from nereid_adopt.proxy.recorder import (
    BROKEN_SEQUENCE,
    CopiedCall,
    DrainQuestion,
    GrpcReply,
    HttpReply,
    StreamEvent,
)
from nereid_perf.endpoint import Endpoint, TlsSettings

if TYPE_CHECKING:
    from nereid.comparison.responses import Response
    from nereid.comparison.rules import Rules
    from nereid_adopt.calls.traffic import SequenceStep
    from nereid_perf.endpoint import Protocol

_log = logging.getLogger(__name__)

# Copies in flight, and those of streams that the client has ended. Further ones wait in the socket,
# and then in the proxy's queue.
_MAX_COPIES: Final = 64
# Larger ones count as several.
_SLOT_BYTES: Final = 1 << 20


class CopyOptions(NamedTuple):
    """Options of the process of copies."""

    http_addresses: tuple[str, str]
    grpc_addresses: tuple[str, str]
    rules: Rules
    tally: TallyOptions
    timeout_s: float
    # `None` for servers in clear text.
    http_tls: tuple[TlsSettings | None, TlsSettings | None] = (None, None)
    grpc_tls: tuple[TlsSettings | None, TlsSettings | None] = (None, None)

    def endpoints(self, protocol: Protocol) -> tuple[Endpoint, Endpoint]:
        """Return both servers' ports for a protocol."""
        addresses, tls = (
            (self.http_addresses, self.http_tls)
            if protocol == "http"
            else (self.grpc_addresses, self.grpc_tls)
        )
        old, new = (Endpoint(protocol, *pair) for pair in zip(addresses, tls, strict=True))
        return old, new


class Copies:
    """Copies in flight. Those of one sequence are sent one after the other."""

    def __init__(self, options: CopyOptions) -> None:
        self.tally = Tally(options.rules, options.tally)
        self._sender = CopySender(
            options.endpoints("http"), options.endpoints("grpc"), options.timeout_s
        )
        self._slots = asyncio.Semaphore(_MAX_COPIES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_number = 0
        self._last_of_sequence: dict[tuple[str, str], asyncio.Task[None]] = {}
        # Numbers of sequences' copies in flight, in their order.
        self._numbers: dict[int, None] = {}
        self._streams: dict[int, StreamCopy] = {}
        self._timeout_s = options.timeout_s
        # Timers of streams that have ended, and whose copies have not.
        self._stream_timers: dict[int, asyncio.TimerHandle] = {}
        self._stream_ended = asyncio.Event()
        # Sequences of which a copy has failed, until they start anew.
        self._broken: set[tuple[str, str]] = set()

    async def on_message(self, message: Any) -> object | None:
        """Handle an event of a stream, a question, or a call's fields."""
        match message:
            case StreamEvent():
                while message.kind == "begin" and len(self._stream_timers) >= _MAX_COPIES:
                    self._stream_ended.clear()
                    await self._stream_ended.wait()
                self.on_event(message)
            case DrainQuestion():
                await self.drain()
                return message
            case _:
                await self.add(CopiedCall.from_fields(message))
        return None

    async def add(self, call: CopiedCall) -> None:
        """Send a copy, when fewer than the maximum are in flight."""
        contents = *call.request, *call.inputs.values(), *call.outputs.values()
        size = sum(len(memoryview(content)) for content in contents)
        slots = min(_MAX_COPIES, 1 + size // _SLOT_BYTES)
        for _ in range(slots):
            await self._slots.acquire()
        key = None if call.step is None else call.step.key
        earlier = None if key is None else self._last_of_sequence.get(key)
        task = asyncio.get_running_loop().create_task(self._copy(call, earlier))
        self._tasks.add(task)
        if key is not None:
            self._last_of_sequence[key] = task
            self._numbers[call.number] = None
            self._last_number = call.number

        def on_done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            for _ in range(slots):
                self._slots.release()
            if key is None:
                return
            if self._last_of_sequence.get(key) is task:
                del self._last_of_sequence[key]
            self._numbers.pop(call.number, None)
            first = next(iter(self._numbers), self._last_number + 1)
            self.tally.settled_through = first - 1

        task.add_done_callback(on_done)

    def on_event(self, event: StreamEvent) -> None:
        """Handle an event of a stream."""
        number = event.stream
        if event.kind == "begin":
            self._streams[number] = StreamCopy(
                event,
                self._sender.channels[event.side.other],
                self.tally,
                partial(self._forget_stream, number),
            )
        elif number in self._streams:
            self._streams[number].on_event(event)
            if event.kind == "end" and number in self._streams:
                self._stream_timers[number] = asyncio.get_running_loop().call_later(
                    self._timeout_s, self._streams[number].time_out
                )
        elif event.kind == "request":
            self.tally.settled[event.model] += 1

    def _forget_stream(self, number: int) -> None:
        self._streams.pop(number, None)
        timer = self._stream_timers.pop(number, None)
        if timer is not None:
            timer.cancel()
            self._stream_ended.set()

    async def drain(self) -> None:
        """Wait until all copies in flight have ended; streams go on."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cancel all copies."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._sender.close()

    async def _copy(self, call: CopiedCall, earlier: asyncio.Task[None] | None) -> None:
        try:
            await self._send_and_compare(call, earlier)
        except Exception as error:
            # A defect costs one comparison.
            _log.error("copy failed: model=%s error=%r", call.model, error)
            self.tally.add_not_compared(call.model, "the copy failed")
        finally:
            # In the same turn as its count, so that no checkpoint has only one of them.
            self.tally.settled[call.model] += 1

    async def _send_and_compare(self, call: CopiedCall, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait({earlier})
        if self._is_broken(call.step):
            self.tally.add_not_compared(call.model, BROKEN_SEQUENCE)
            return
        try:
            reply, latency_s = await self._sender.send(call)
            replies = {
                call.side: (_decode(call.reply, call), call.latency_s),
                call.side.other: (_decode(reply, None), latency_s),
            }
        except NotCopiedError as error:
            self.tally.add_not_compared(call.model, str(error))
            if call.step is not None and not call.step.end:
                self._broken.add(call.step.key)
            return
        except (ValueError, LookupError, TypeError, AttributeError, DecodeError):
            self.tally.add_not_compared(call.model, "a response could not be read")
            return
        request = b"".join(call.request)
        request_id, inputs = (
            http_inputs(decoded(request, call.encoding) or b"", call.json_bytes)
            if isinstance(call.reply, HttpReply)
            else grpc_inputs(request)
        )
        (old, old_s), (new, new_s) = replies[Side.OLD], replies[Side.NEW]
        self.tally.add(Exchange(call.model, inputs, [old], [new], old_s, new_s, request_id))

    def _is_broken(self, step: SequenceStep | None) -> bool:
        if step is None:
            return False
        if step.start:
            self._broken.discard(step.key)
        is_broken = step.key in self._broken
        if step.end:
            self._broken.discard(step.key)
        return is_broken


def _decode(reply: HttpReply | GrpcReply, call: CopiedCall | None) -> Response:
    outputs = {} if call is None else call.outputs
    if isinstance(reply, HttpReply):
        return http_response(reply, outputs)
    return grpc_response(reply, outputs)
