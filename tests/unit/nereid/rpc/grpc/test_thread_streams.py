"""Streams between a thread and handlers of the same process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from nereid.rpc import Call, Handlers, RpcError, Status, ThreadStream, ThreadStreams

LIMIT_S = 30
T = TypeVar("T")


@dataclass
class Site:
    """A handler of streams, and what it sees."""

    calls: asyncio.Queue[Call] = field(default_factory=asyncio.Queue)
    messages: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def handlers(self) -> Handlers:
        return Handlers(unary={"/unary": self.open}, stream={"/open": self.open})

    def open(self, call: Call, _message: bytes = b"") -> None:
        call.accept()
        call.on_message = self.messages.put_nowait
        call.on_cancel = self.cancelled.set
        self.calls.put_nowait(call)

    async def call(self) -> Call:
        return await asyncio.wait_for(self.calls.get(), LIMIT_S)

    async def message(self) -> bytes:
        return await asyncio.wait_for(self.messages.get(), LIMIT_S)


@pytest.fixture
async def site() -> Site:
    return Site()


@pytest.fixture
async def streams(site: Site) -> ThreadStreams:
    return ThreadStreams(site.handlers())


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.wait_for(asyncio.to_thread(work), LIMIT_S)


def echo(stream: ThreadStream) -> list[bytes]:
    """What a thread received, and sent back, until the stream's end."""
    received: list[bytes] = []
    while (message := stream.receive()) is not None:
        received.append(message)
        stream.send(b"from the thread: " + message)
    return received


async def test_messages_keep_their_order_both_ways(site: Site, streams: ThreadStreams) -> None:
    stream = streams.open("/open", (("a", "b"),))
    call = await site.call()
    assert (call.get("a"), call.peer_is_local, call.buffered_bytes) == ("b", True, 0)
    thread = asyncio.ensure_future(in_thread(lambda: echo(stream)))
    sent = [b"%d" % number for number in range(100)]
    for message in sent:
        call.send(message)
    assert [await site.message() for _ in sent] == [b"from the thread: " + each for each in sent]
    call.finish()
    call.send(b"too late")
    assert await thread == sent
    # As often as it is asked.
    assert await in_thread(stream.receive) is None
    with pytest.raises(RpcError) as caught:
        stream.send(b"too late as well")
    assert caught.value.status == Status.UNAVAILABLE


async def test_the_handlers_error_is_raised_after_its_messages(
    site: Site, streams: ThreadStreams
) -> None:
    stream = streams.open("/open")
    call = await site.call()
    call.send(b"last")
    call.fail(Status.ABORTED, "enough")
    assert await in_thread(stream.receive) == b"last"
    for use in (stream.receive, stream.receive, lambda: stream.send(b"x")):
        with pytest.raises(RpcError, match="enough") as caught:
            await in_thread(use)
        assert caught.value.status == Status.ABORTED
    assert not site.cancelled.is_set()


@pytest.mark.parametrize("path", ["/unary", "/nowhere"])
async def test_other_methods_are_refused(streams: ThreadStreams, path: str) -> None:
    stream = streams.open(path)
    with pytest.raises(RpcError) as caught:
        await in_thread(stream.receive)
    assert caught.value.status == Status.UNIMPLEMENTED


async def test_closing_from_another_thread_ends_a_blocked_receive(
    site: Site, streams: ThreadStreams
) -> None:
    stream = streams.open("/open")
    call = await site.call()
    thread = asyncio.ensure_future(in_thread(lambda: echo(stream)))
    call.send(b"a")
    assert await site.message() == b"from the thread: a"
    stream.close()
    stream.close()
    assert await thread == [b"a"]
    await asyncio.wait_for(site.cancelled.wait(), LIMIT_S)
    assert call.done
    # Neither is an error, as with a socket that was closed here.
    stream.send(b"dropped")
    assert stream.receive() is None


async def test_what_was_sent_before_closing_arrives(site: Site, streams: ThreadStreams) -> None:
    stream = streams.open("/open")

    def work() -> None:
        stream.send(b"1")
        stream.send(b"2")
        stream.close()

    await in_thread(work)
    assert [await site.message(), await site.message()] == [b"1", b"2"]
    await asyncio.wait_for(site.cancelled.wait(), LIMIT_S)


async def test_messages_that_nobody_received_are_dropped_by_closing(
    site: Site, streams: ThreadStreams
) -> None:
    stream = streams.open("/open")
    (await site.call()).send(b"abandoned")
    stream.close()
    assert await in_thread(stream.receive) is None


async def test_closing_all_streams(site: Site, streams: ThreadStreams) -> None:
    stream, ended = streams.open("/open"), streams.open("/open")
    first = await site.call()
    assert await site.call() is not first
    ended.close()
    await asyncio.wait_for(site.cancelled.wait(), LIMIT_S)
    site.cancelled.clear()
    streams.close()
    assert site.cancelled.is_set()
    for each in (stream, streams.open("/open")):
        with pytest.raises(RpcError, match="the channel is closed"):
            await in_thread(each.receive)


def test_a_loop_that_has_ended() -> None:
    async def make() -> tuple[ThreadStreams, ThreadStream]:
        streams = ThreadStreams(Site().handlers())
        return streams, streams.open("/open")

    streams, stream = asyncio.run(make())
    with pytest.raises(RpcError, match="the event loop has ended"):
        streams.open("/open")
    with pytest.raises(RpcError, match="the event loop has ended"):
        stream.send(b"")
    stream.close()


async def test_a_handler_that_fails_ends_the_stream(streams: ThreadStreams, site: Site) -> None:
    def fail(_: bytes) -> None:
        raise ValueError("on purpose")

    stream = streams.open("/open")
    (await site.call()).on_message = fail
    stream.send(b"x")
    with pytest.raises(RpcError) as caught:
        await in_thread(stream.receive)
    assert caught.value.status == Status.INTERNAL


# ---- in the thread's place


class Owner:
    """A thread that uses a stream, and what stands in for it."""

    def __init__(self, streams: ThreadStreams) -> None:
        self.loop_thread = threading.get_ident()
        self.in_use = False
        self.on_loop: list[bytes] = []
        self.in_thread: list[bytes] = []
        self.accepts = True
        self.refused: bytes | None = None
        self.fails = False
        self.stream = streams.open("/open", (), self.stand_in)

    def use(self, message: bytes, seen: list[bytes]) -> bytes:
        assert not self.in_use, "by both at once"
        self.in_use = True
        seen.append(message)
        sum(range(100))
        self.in_use = False
        return message

    def stand_in(self, message: bytes) -> bytes | None:
        assert threading.get_ident() == self.loop_thread
        if self.fails:
            raise ArithmeticError("on purpose")
        if not self.accepts or message == self.refused:
            return None
        reply = self.use(message, self.on_loop)
        return b"" if message == b"withdrawn" else reply

    def run(self) -> None:
        while (message := self.stream.receive()) is not None:
            self.stream.send(self.use(message, self.in_thread))


@pytest.fixture
async def owner(streams: ThreadStreams) -> Owner:
    return Owner(streams)


async def until_waiting(owner: Owner, site: Site, call: Call) -> None:
    """Until the loop stands in for the thread."""
    seen = len(owner.on_loop)
    while len(owner.on_loop) == seen:
        call.send(b"warm")
        assert await site.message() == b"warm"


async def test_the_loop_handles_a_message_while_the_thread_waits(site: Site, owner: Owner) -> None:
    call = await site.call()
    thread = asyncio.ensure_future(in_thread(owner.run))
    await until_waiting(owner, site, call)
    owner.in_thread.clear()
    for number in range(50):
        message = b"%d" % number
        call.send(message)
        # Its reply never comes from inside send().
        assert site.messages.empty()
        assert await site.message() == message
    assert owner.in_thread == []
    owner.accepts = False
    call.send(b"refused")
    assert await site.message() == b"refused"
    assert owner.in_thread == [b"refused"]
    call.finish()
    await thread


async def test_messages_of_one_turn_are_handled_in_their_order_one_a_turn(
    site: Site, owner: Owner
) -> None:
    call = await site.call()
    thread = asyncio.ensure_future(in_thread(owner.run))
    await until_waiting(owner, site, call)
    owner.on_loop.clear()
    owner.in_thread.clear()
    sent = [b"%d" % number for number in range(5)]
    for message in sent:
        call.send(message)
    for number in range(5):
        await asyncio.sleep(0)
        assert owner.on_loop == sent[: number + 1]
    assert [await site.message() for _ in sent] == sent
    assert owner.in_thread == []
    call.finish()
    await thread


async def test_what_the_loop_refuses_goes_to_the_thread_with_all_behind_it(
    site: Site, owner: Owner
) -> None:
    call = await site.call()
    thread = asyncio.ensure_future(in_thread(owner.run))
    await until_waiting(owner, site, call)
    owner.in_thread.clear()
    owner.refused = b"2"
    sent = [b"%d" % number for number in range(5)]
    for message in sent:
        call.send(message)
    assert [await site.message() for _ in sent] == sent
    assert owner.on_loop[-2:] == sent[:2]
    assert owner.in_thread == sent[2:]
    call.finish()
    await thread


async def test_an_empty_reply_is_none(site: Site, owner: Owner) -> None:
    call = await site.call()
    thread = asyncio.ensure_future(in_thread(owner.run))
    await until_waiting(owner, site, call)
    for message in (b"1", b"withdrawn", b"2"):
        call.send(message)
    assert [await site.message(), await site.message()] == [b"1", b"2"]
    assert owner.on_loop[-2:] == [b"withdrawn", b"2"]
    assert site.messages.empty()
    call.finish()
    await thread


async def test_never_both_at_once_and_never_out_of_order(site: Site, owner: Owner) -> None:
    call = await site.call()
    thread = asyncio.ensure_future(in_thread(owner.run))
    await until_waiting(owner, site, call)
    received: list[bytes] = []
    for number in range(2000):
        call.send(b"%d" % number)
        if number % 3:
            await asyncio.sleep(0)
        if number % 7 == 0:
            # The thread finds the time to wait again.
            received += [await site.message() for _ in range(number + 1 - len(received))]
    received += [await site.message() for _ in range(2000 - len(received))]
    assert received == [b"%d" % number for number in range(2000)]
    assert owner.on_loop
    assert owner.in_thread
    call.finish()
    await thread


async def test_an_error_on_the_loop_is_raised_in_the_thread(site: Site, owner: Owner) -> None:
    call = await site.call()
    thread = asyncio.ensure_future(in_thread(owner.run))
    await until_waiting(owner, site, call)
    owner.fails = True
    while not call.done:
        # The thread may be on its way to wait yet, and has it then.
        call.send(b"x")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    with pytest.raises(ArithmeticError, match="on purpose"):
        await thread
    assert site.cancelled.is_set()


async def test_a_message_for_the_loop_is_dropped_by_closing(site: Site, owner: Owner) -> None:
    call = await site.call()
    thread = asyncio.ensure_future(in_thread(owner.run))
    await until_waiting(owner, site, call)
    handled = len(owner.on_loop)
    owner.stream.close()
    await asyncio.wait_for(site.cancelled.wait(), LIMIT_S)
    call.send(b"dropped")
    await thread
    assert len(owner.on_loop) == handled
    assert b"dropped" not in owner.in_thread


@pytest.mark.parametrize("end", ["finish", "fail"])
async def test_a_message_for_the_loop_is_dropped_by_the_handlers_end(
    site: Site, owner: Owner, end: str
) -> None:
    call = await site.call()
    thread = asyncio.ensure_future(in_thread(owner.run))
    await until_waiting(owner, site, call)
    call.send(b"dropped")
    if end == "finish":
        call.finish()
        await thread
    else:
        call.fail(Status.NOT_FOUND, "unloaded")
        with pytest.raises(RpcError, match="unloaded"):
            await thread
    assert b"dropped" not in owner.on_loop
