"""How frames are gathered: in turns, with aligned clocks, and from services that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from time import monotonic_ns

import pytest

from nereid.core.errors import Unavailable
from nereid.core.methods import TIMELINE_PATH
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Handlers
from nereid.timeline import wire
from nereid.timeline.collection import (
    NO_FRAMES,
    Alignment,
    OwnFrames,
    RemoteFrames,
    TimelineStreams,
    read_all,
)
from nereid.timeline.recorder import Recorder
from nereid.timeline.records import Timeline
from tests.support.rpc.local_channel import LocalChannel

ASK = pb.TimelineRequest(last_ns=60_000_000_000)
SECOND = 1_000_000_000


def recorder(events: int = 1, clock: str = "here") -> Recorder:
    it = Recorder("scheduler", "s", 30, clock)
    for number in range(events):
        it.events.record("load", f"m{number}")
    return it


async def gathered(frames: AsyncGenerator[bytes]) -> Timeline:
    return wire.read_timeline(b"".join([wire.file_part(each) async for each in frames]))


def channel_to(it: Recorder) -> LocalChannel:
    own = OwnFrames(it)
    streams = TimelineStreams(lambda request: own.collect(request.last_ns))
    return LocalChannel(Handlers(stream={TIMELINE_PATH: streams.accept}))


async def test_another_service_is_asked() -> None:
    source = RemoteFrames(channel_to(recorder(3000)), ASK, "here", silence_limit_s=30)
    timeline = await gathered(read_all([("scheduler", source)]))
    assert timeline.missing == []
    assert len(timeline.services[0].records) == 3000
    assert (timeline.services[0].offset_ns, timeline.services[0].error_ns) == (0, 0)


async def test_a_service_that_records_nothing_says_so() -> None:
    with pytest.raises(Unavailable, match="--timeline-seconds=0"):
        await anext(NO_FRAMES.collect(SECOND))


async def test_another_clock_is_measured() -> None:
    source = RemoteFrames(channel_to(recorder(1, "there")), ASK, "here", silence_limit_s=30)
    service = (await gathered(read_all([("scheduler", source)]))).services[0]
    # It is the same clock, though it does not say so.
    assert abs(service.offset_ns) <= service.error_ns
    assert service.error_ns > 0


def test_services_behind_another_one() -> None:
    alignment = Alignment("here")
    asked_ns = monotonic_ns()
    there_ns = asked_ns + 500 * SECOND

    def aligned(name: str, clock: str, offset_ns: int = 0, now_ns: int = 0) -> pb.TimelineService:
        service = pb.TimelineService(name=name, clock=clock, offset_ns=offset_ns, now_ns=now_ns)
        frame = alignment.aligned(wire.service_frame(service))
        return pb.TimelineFrame.FromString(frame).service

    scheduler = aligned("s", "there", now_ns=there_ns)
    # What it has to be set back by, but for the time that the reply took.
    assert scheduler.offset_ns == pytest.approx(-500 * SECOND, abs=SECOND)
    assert scheduler.now_ns == 0
    beside = aligned("e1", "elsewhere", offset_ns=7)
    assert beside.offset_ns == scheduler.offset_ns + 7
    assert beside.error_ns == scheduler.error_ns
    with_us = aligned("e2", "here", offset_ns=7)
    assert (with_us.offset_ns, with_us.error_ns) == (0, 0)


async def test_one_caller_at_a_time() -> None:
    own = OwnFrames(recorder(2000), max_waiting=1)
    first = own.collect(SECOND * 60)
    await anext(first)
    second = asyncio.ensure_future(gathered(own.collect(SECOND * 60)))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="too many"):
        await anext(own.collect(SECOND * 60))
    assert not second.done()
    await first.aclose()
    assert len((await second).services[0].records) == 2000


async def test_services_that_fail_are_named() -> None:
    async def silent(_: pb.TimelineRequest) -> AsyncGenerator[bytes]:
        yield wire.service_frame(pb.TimelineService(kind="scheduler", name="half"))
        await asyncio.Event().wait()

    async def refusing(_: pb.TimelineRequest) -> AsyncGenerator[bytes]:
        raise Unavailable("it records nothing")
        yield b""

    async def broken(_: pb.TimelineRequest) -> AsyncGenerator[bytes]:
        yield b"\xff\xff"

    collects = {"silent": silent, "refusing": refusing, "broken": broken}
    streams = {name: TimelineStreams(collect) for name, collect in collects.items()}
    sources = [
        (
            name,
            RemoteFrames(
                LocalChannel(Handlers(stream={TIMELINE_PATH: each.accept})),
                ASK,
                "here",
                silence_limit_s=0.05,
            ),
        )
        for name, each in streams.items()
    ]
    sources.append(("old", RemoteFrames(LocalChannel(Handlers()), ASK, "", silence_limit_s=1)))
    timeline = await gathered(read_all(sources))
    assert [each.name for each in timeline.services] == ["half"]
    silent_one, refused, unread, old = timeline.missing
    assert silent_one.startswith("silent: it has sent nothing")
    assert refused == "refusing: it records nothing"
    assert unread == "broken: a frame that cannot be read"
    assert old.startswith("old: unknown method")


async def test_a_caller_that_leaves_frees_the_turn() -> None:
    own = OwnFrames(recorder(5000))
    streams = TimelineStreams(lambda request: own.collect(request.last_ns))
    channel = LocalChannel(Handlers(stream={TIMELINE_PATH: streams.accept}))
    source = RemoteFrames(channel, ASK, "here", silence_limit_s=30)
    await anext(source.read())
    source.close()
    again = RemoteFrames(channel, ASK, "here", silence_limit_s=30)
    assert len((await gathered(read_all([("s", again)]))).services[0].records) == 5000
