"""Links over each channel and in memory: a frame per turn, gathering while blocked, coming back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nereid.rpc import (
    BackoffOptions,
    Call,
    Channel,
    ChannelOptions,
    Handlers,
    Link,
    NotConnectedError,
    Server,
    SocketChannel,
    accept_link,
    dial_link,
    memory_links,
)
from tests.support.rpc.local_channel import LocalChannel
from tests.support.waiting import soon, until

FAST = ChannelOptions(backoff=BackoffOptions(first_s=0.001, largest_s=0.01))


class Lines:
    """Items are texts, a frame is lines; a frame that is no UTF-8 cannot be read."""

    def size_bytes(self, item: str) -> int:
        return len(item)

    def encode(self, items: list[str]) -> bytes:
        return "\n".join(items).encode()

    def decode(self, frame: bytes) -> list[str]:
        return frame.decode().split("\n")


class End:
    """One end of a link and what it received: a list for each frame."""

    def __init__(self) -> None:
        self.frames: list[list[str]] = []
        self.ups = 0
        self.downs = 0
        self.changed = asyncio.Event()

    def on_items(self, items: list[str]) -> None:
        self.frames.append(items)
        if items == ["fail"]:
            raise KeyError("the owner's error")

    def on_up(self) -> None:
        self.ups += 1
        self.changed.set()

    def on_down(self) -> None:
        self.downs += 1
        self.changed.set()

    @property
    def items(self) -> list[str]:
        return [item for frame in self.frames for item in frame]


class Far:
    """The server's side: accepts links."""

    def __init__(self) -> None:
        self.ends: list[End] = []
        self.links: list[Link[str]] = []
        self.calls: list[Call] = []
        self.handlers = Handlers(stream={"/test/Link": self.accept})

    def accept(self, call: Call) -> None:
        end = End()
        link = accept_link(call, Lines(), on_items=end.on_items, on_down=end.on_down)
        self.ends.append(end)
        self.links.append(link)
        self.calls.append(call)


@pytest.fixture
async def far() -> Far:
    return Far()


@pytest.fixture(params=["own", "local"])
async def channel(request: pytest.FixtureRequest, far: Far) -> AsyncIterator[Channel]:
    if request.param == "local":
        local = LocalChannel(far.handlers)
        yield local
        await local.close()
        return
    server = Server(far.handlers)
    remote = SocketChannel(await server.listen("127.0.0.1:0"), FAST)
    yield remote
    await remote.close()
    await server.close()


def dial(channel: Channel, end: End) -> Link[str]:
    return dial_link(
        channel,
        "/test/Link",
        Lines(),
        on_items=end.on_items,
        on_up=end.on_up,
        on_down=end.on_down,
    )


async def test_a_turns_items_share_a_frame(channel: Channel, far: Far) -> None:
    near = End()
    link = dial(channel, near)
    assert not link.up
    link.send("dropped, as the link is down")
    await soon(near.changed)
    assert link.up
    for item in "abc":
        link.send(item)
    assert link.pending == 3
    await until(lambda: len(far.ends[0].items) == 3)
    assert far.ends[0].frames == [["a", "b", "c"]]
    assert link.pending == 0
    link.send("d")
    await until(lambda: len(far.ends[0].items) == 4)
    for item in "xyz":
        far.links[0].send(item)
    await until(lambda: len(near.items) == 3)
    assert near.frames == [["x", "y", "z"]]
    link.close()


async def test_what_gathers_while_blocked_leaves_as_one_frame(channel: Channel, far: Far) -> None:
    near = End()
    link = dial(channel, near)
    await soon(near.changed)
    far.calls[0].pause()
    link.send("x" * 60_000_000)
    await until(lambda: link.pending == 0)
    for number in range(100):
        link.send(str(number))
        await asyncio.sleep(0)
    assert link.pending == 100
    far.calls[0].resume()
    await asyncio.wait_for(link.drain(), 20)
    assert link.pending == 0
    await until(lambda: len(far.ends[0].items) == 101)
    assert [len(frame) for frame in far.ends[0].frames] == [1, 100]
    link.close()


async def test_large_items_do_not_share_a_frame(channel: Channel, far: Far) -> None:
    near = End()
    link = dial(channel, near)
    await soon(near.changed)
    far.calls[0].pause()
    megabyte = "x" * (1 << 20)
    for item in ("a", 9 * megabyte, megabyte, megabyte, "b", 3 * megabyte, "c"):
        link.send(item)
    far.calls[0].resume()
    await until(lambda: len(far.ends[0].items) == 7)
    assert [len(frame) for frame in far.ends[0].frames] == [1, 1, 3, 2]
    link.send(3 * megabyte)
    link.send(3 * megabyte)
    link.close()
    await until(lambda: len(far.ends[0].items) == 9)
    assert [len(frame) for frame in far.ends[0].frames[4:]] == [1, 1]


async def test_closing_sends_what_is_pending_and_ends_the_other_side(
    channel: Channel, far: Far
) -> None:
    near = End()
    link = dial(channel, near)
    await soon(near.changed)
    link.send("last words")
    link.close()
    link.close()
    assert not link.up
    await until(lambda: far.ends[0].downs == 1)
    assert far.ends[0].items == ["last words"]
    assert not far.links[0].up
    assert near.downs == 0
    await asyncio.wait_for(link.drain(), 1)


async def test_the_server_closes_and_the_client_comes_back(channel: Channel, far: Far) -> None:
    near = End()
    link = dial(channel, near)
    await until(lambda: near.ups == 1)
    far.links[0].send("bye")
    far.links[0].close()
    await until(lambda: near.ups == 2)
    assert near.downs == 1
    assert near.items == ["bye"]
    assert far.ends[0].downs == 0
    link.send("again")
    await until(lambda: far.ends[1].items == ["again"])
    link.close()


async def test_a_broken_stream_takes_both_ends_down(channel: Channel, far: Far) -> None:
    near = End()
    link = dial(channel, near)
    await until(lambda: near.ups == 1)
    await channel.close()
    await until(lambda: near.downs == 1 and far.ends[0].downs == 1)
    link.close()


async def test_an_unreadable_frame_breaks_the_link_and_a_failing_owner_does_not(
    channel: Channel, far: Far
) -> None:
    near = End()
    link = dial(channel, near)
    await until(lambda: near.ups == 1)
    far.links[0].send("fail")
    await until(lambda: near.items == ["fail"])
    far.calls[0].send(b"\xff")
    await until(lambda: near.ups == 2)
    assert near.items == ["fail"]
    assert near.downs == 1
    await until(lambda: far.ends[0].downs == 1)
    link.close()


async def test_the_servers_end_refuses_unreadable_frames(channel: Channel, far: Far) -> None:
    errors: list[Any] = []
    stream = channel.stream("/test/Link", on_message=lambda _: None, on_close=errors.append)
    stream.send(b"\xff")
    await until(lambda: bool(errors))
    assert errors[0].status.name == "INVALID_ARGUMENT"
    assert far.ends[0].downs == 1


async def test_a_link_waits_for_its_server(tmp_path: Path, far: Far) -> None:
    channel = SocketChannel(f"unix:{tmp_path}/s", FAST)
    near = End()
    link = dial(channel, near)
    with pytest.raises(NotConnectedError):
        await channel.unary("/test/Link", b"")
    server = Server(far.handlers)
    await server.listen(f"unix:{tmp_path}/s")
    await until(lambda: near.ups == 1)
    await server.close()
    await until(lambda: near.downs == 1)
    link.close()
    await channel.close()


async def test_memory_links() -> None:
    one, other = memory_links()
    ends = End(), End()
    for link, end in zip((one, other), ends, strict=True):
        link.on_items, link.on_up, link.on_down = end.on_items, end.on_up, end.on_down
    item = object()
    one.send(item)
    one.send("b")
    assert one.pending == 2
    await asyncio.wait_for(one.drain(), 1)
    assert ends[1].frames == [[item, "b"]]
    assert ends[0].ups == ends[1].ups == 1
    other.send("c")
    other.close()
    assert ends[0].frames == [["c"]]
    await until(lambda: ends[0].downs == 1)
    assert ends[1].downs == 0
    one.send("nobody")
    assert one.pending == 0
    one.close()


async def test_of_what_both_ends_have_sent_requests_are_handed_over_first() -> None:
    client, server = memory_links()
    seen: list[object] = []
    client.on_items = server.on_items = seen.extend
    server.send("response")
    client.send("request")
    client.send("another")
    await until(lambda: len(seen) == 3)
    assert seen == ["request", "another", "response"]
    server.send("alone")
    await until(lambda: len(seen) == 4)
    # What the end of a link has sent last is not held up by what comes too late for it.
    server.send("last")
    client.send("lost")
    server.close()
    assert seen[4:] == ["last"]
    await until(lambda: not client.up)
    assert seen[5:] == []


async def test_what_is_sent_at_once_takes_along_what_waits_for_the_end_of_the_turn() -> None:
    one, other = memory_links()
    end = End()
    other.on_items = end.on_items
    one.send("alone", at_once=True)
    assert end.frames == [["alone"]]
    one.send("a")
    assert len(end.frames) == 1
    one.send("b", at_once=True)
    assert end.frames[1:] == [["a", "b"]]
    one.send("c")
    await until(lambda: len(end.frames) == 3)
    assert end.frames[2] == ["c"]
    one.close()
    one.send("nobody", at_once=True)
    assert len(end.frames) == 3


@pytest.mark.parametrize("is_expected", [False, True])
async def test_an_end_that_the_other_end_has_announced_is_no_warning(
    far: Far, caplog: pytest.LogCaptureFixture, *, is_expected: bool
) -> None:
    caplog.set_level("INFO", "nereid.rpc")
    server = Server(far.handlers)
    channel = SocketChannel(await server.listen("127.0.0.1:0"), FAST)
    link = dial(channel, End())
    await until(lambda: link.up)
    if is_expected:
        link.expect_end()
    await server.close()
    await until(lambda: not link.up and bool(caplog.records))
    link.close()
    await channel.close()
    assert caplog.records[0].levelname == ("INFO" if is_expected else "WARNING")
    assert "is down" in caplog.records[0].message
