"""Copies that go to a scripted server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nereid.comparison.rules import parse_rules
from nereid.comparison.tally import TallyOptions
from nereid.rpc import Call, Handlers, RpcError, Server, Status
from nereid_adopt.calls.kinds import MODEL_INFER
from nereid_adopt.calls.traffic import SequenceStep, Side
from nereid_adopt.copies.process import Copies, CopyOptions
from nereid_adopt.proxy.recorder import (
    BROKEN_SEQUENCE,
    CopiedCall,
    GrpcReply,
    HttpReply,
    StreamEvent,
)

_NOBODY = "127.0.0.1:1"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


class Service:
    """Keeps the messages of inferences, and refuses those that begin with an x."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.held: list[Call] = []
        self.holds_streams = False

    def infer(self, call: Call, message: bytes) -> None:
        self.messages.append(message)
        if message.startswith(b"h"):
            self.held.append(call)
        elif message.startswith(b"x"):
            raise RpcError(Status.UNAVAILABLE, "not now")
        else:
            call.reply(b"")

    def chat(self, call: Call) -> None:
        call.on_message = call.send
        call.on_half_close = lambda: self.finish(call)

    def finish(self, call: Call) -> None:
        if self.holds_streams:
            self.held.append(call)
        else:
            call.finish()


@asynccontextmanager
async def copies(timeout_s: float = 5) -> AsyncIterator[tuple[Service, Copies]]:
    service = Service()
    server = Server(Handlers(unary={MODEL_INFER: service.infer}, stream={_STREAM: service.chat}))
    address = await server.listen("127.0.0.1:0")
    addresses = (_NOBODY, _NOBODY), (_NOBODY, address)
    found = Copies(CopyOptions(*addresses, parse_rules({}), TallyOptions(), timeout_s))
    try:
        async with asyncio.timeout(30):
            yield service, found
    finally:
        await found.close()
        await server.close()


def call(message: bytes, step: SequenceStep | None = None, number: int = 0) -> CopiedCall:
    reply = GrpcReply((b"",))
    fields = "m", Side.OLD, MODEL_INFER, (), (message,), reply, 0.1, step
    return CopiedCall(*fields, number=number)


def step(*, start: bool = False, end: bool = False, sequence_id: str = "1") -> SequenceStep:
    return SequenceStep("m", sequence_id, start, end)


async def test_requests_of_a_sequence_are_sent_one_after_the_other() -> None:
    async with copies() as (service, found):
        await found.add(call(b"h", step(start=True)))
        for number in range(5):
            await found.add(call(b"%d" % number, step()))
        await found.add(call(b"other"))
        while b"other" not in service.messages:
            await asyncio.sleep(0)
        assert service.messages == [b"h", b"other"]
        service.held[0].reply(b"")
        await found.drain()
        assert service.messages[2:] == [b"%d" % number for number in range(5)]
        assert found.tally.totals("m") == (7, 0)


async def test_a_copy_in_flight_keeps_later_ones_from_counting_as_settled() -> None:
    async with copies() as (service, found):
        await found.add(call(b"1", step(sequence_id="1"), 1))
        await found.drain()
        assert found.tally.take_checkpoint().settled_through == 1
        await found.add(call(b"h", step(sequence_id="2"), 2))
        await found.add(call(b"3", step(sequence_id="3"), 3))
        while found.tally.settled["m"] != 1:
            await asyncio.sleep(0)
        assert found.tally.settled_through == 1
        service.held[0].reply(b"")
        await found.drain()
        assert found.tally.settled_through == 3


async def test_a_copy_that_failed_leaves_out_the_rest_of_its_sequence() -> None:
    async with copies() as (service, found):
        for message, part in (
            (b"x", step(start=True)),
            (b"1", step()),
            (b"2", step(end=True)),
            (b"3", step(start=True)),
        ):
            await found.add(call(message, part))
        await found.drain()
        assert service.messages == [b"x", b"3"]
        assert found.tally.document()["not_compared"] == {
            "the other server did not respond": 1,
            BROKEN_SEQUENCE: 2,
        }


async def test_servers_that_do_not_respond_are_counted() -> None:
    async with copies(timeout_s=0.05) as (_, found):
        await found.add(call(b"h"))
        body = json.dumps({"inputs": []}).encode()
        reply = HttpReply(200, (b'{"outputs": []}',))
        await found.add(CopiedCall("m", Side.OLD, "/v2/models/m/infer", (), (body,), reply, 0.1))
        await found.drain()
        assert found.tally.document()["not_compared"] == {"the other server did not respond": 2}


async def end_stream(found: Copies, number: int) -> None:
    for kind in ("begin", "half-close", "end"):
        path, message = (_STREAM, b"") if kind == "begin" else ("", b"0")
        event = StreamEvent(number, Side.OLD, kind, message=message, path=path, model="m")
        await found.on_message(event)


async def test_copies_of_ended_streams_are_bounded() -> None:
    async with copies() as (service, found):
        service.holds_streams = True
        for number in range(64):
            await end_stream(found, number)
        further = asyncio.ensure_future(end_stream(found, 64))
        while len(service.held) < 64:
            await asyncio.sleep(0)
        assert not further.done()
        service.held[0].finish()
        await further
        assert found.tally.document()["not_compared"] == {}


async def test_copies_of_ended_streams_time_out() -> None:
    async with copies(timeout_s=0.05) as (service, found):
        service.holds_streams = True
        for number in range(65):
            await end_stream(found, number)
        assert found.tally.document()["not_compared"]["the copy timed out"] >= 1


async def test_damaged_messages_of_streams_harm_nobody() -> None:
    async with copies() as (_, found):
        for kind, message in (("begin", b""), ("request", b"\xff"), ("response", b"\xff")):
            path = _STREAM if kind == "begin" else ""
            await found.on_message(StreamEvent(1, Side.OLD, kind, message=message, path=path))
        assert found.tally.document()["not_compared"] == {"a response could not be read": 1}
        # Events of a stream that has ended are ignored.
        await found.on_message(StreamEvent(1, Side.OLD, "response", message=b""))
        await found.add(call(b"next"))
        await found.drain()
        assert found.tally.totals("m") == (1, 0)
