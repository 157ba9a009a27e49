"""A scheduler that gathers executors' records over their Join streams."""

from __future__ import annotations

import asyncio

import pytest

from nereid.core.errors import Unavailable
from nereid.pb import nereid_pb2 as pb
from nereid.timeline import wire
from nereid.timeline.recorder import Recorder
from nereid.timeline.records import Timeline
from nereid_scheduler.core.measurements.timeline import NO_TIMELINE, SchedulerTimeline
from nereid_scheduler.placement.executors.sessions import Session
from nereid_scheduler.placement.executors.timelines import Timelines
from tests.support.scheduler.world import CommandStream, joined
from tests.support.waiting import until

ASK = pb.TimelineRequest(last_ns=10_000_000_000, with_executors=True)


class World:
    def __init__(self, max_held_bytes: int = 1 << 20) -> None:
        self.sessions: list[Session] = []
        timeline = SchedulerTimeline(Recorder("scheduler", "s", 30, "here"))
        self.timelines = Timelines(
            timeline, lambda: self.sessions, silence_limit_s=0.05, max_held_bytes=max_held_bytes
        )

    def executor(self, name: str, *, records: bool = True) -> tuple[Session, CommandStream]:
        session, stream = joined(name, records_timeline=records)
        self.sessions.append(session)
        return session, stream

    def gather(self, ask: pb.TimelineRequest = ASK) -> asyncio.Task[Timeline]:
        async def read() -> Timeline:
            frames = [wire.file_part(each) async for each in self.timelines.collect(ask)]
            return wire.read_timeline(b"".join(frames))

        return asyncio.ensure_future(read())


def frames_of(name: str, events: int = 1) -> list[bytes]:
    recorder = Recorder("executor", name, 30, "there")
    for number in range(events):
        recorder.events.record("load", f"{name}_{number}")
    return list(recorder.frames(10_000_000_000))


async def replies(it: World, session: Session, stream: CommandStream, *, ends: bool = True) -> None:
    await until(lambda: stream.sent)
    query = stream.sent[-1].report_timeline
    assert query.last_ns == ASK.last_ns
    for frame in frames_of(session.name, 1000):
        part = pb.ExecutorTimeline(query=query.query, frames=[frame])
        it.timelines.on_frames(session, part)
    if ends:
        it.timelines.on_frames(session, pb.ExecutorTimeline(query=query.query))


async def test_executors_follow_the_scheduler() -> None:
    it = World()
    joined = [it.executor("e1"), it.executor("e2")]
    gathering = it.gather()
    for session, stream in reversed(joined):
        await replies(it, session, stream)
    timeline = await gathering
    assert timeline.missing == []
    assert [each.name for each in timeline.services] == ["s", "e1", "e2"]
    assert [len(each.records) for each in timeline.services] == [0, 1000, 1000]
    # Of another clock, by what it says.
    assert all(each.error_ns > 0 for each in timeline.services[1:])


async def test_executors_that_do_not_reply_are_named() -> None:
    it = World()
    it.executor("old", records=False)
    silent, silent_join = it.executor("silent")
    lost, _ = it.executor("lost")
    good, good_join = it.executor("good")
    gathering = it.gather()
    await replies(it, good, good_join)
    await replies(it, silent, silent_join, ends=False)
    it.timelines.executor_left(lost)
    timeline = await gathering
    assert [each.name for each in timeline.services] == ["s", "silent", "good"]
    old, hung, gone = timeline.missing
    assert old.startswith("executor 'old': it records nothing")
    assert hung.startswith("executor 'silent': it has sent nothing")
    assert gone == "executor 'lost': it was lost meanwhile"


async def test_what_is_held_is_bounded() -> None:
    it = World(max_held_bytes=100)
    session, stream = it.executor("e")
    gathering = it.gather()
    await replies(it, session, stream)
    [missing] = (await gathering).missing
    assert "ask for less time" in missing


async def test_foreign_frames_are_ignored() -> None:
    it = World()
    session, stream = it.executor("e")
    other, _ = it.executor("other", records=False)
    gathering = it.gather()
    await until(lambda: stream.sent)
    query = stream.sent[0].report_timeline.query
    part = pb.ExecutorTimeline(query=query, frames=frames_of("other"))
    it.timelines.on_frames(other, part)
    it.timelines.on_frames(session, pb.ExecutorTimeline(query=query, frames=[b"\xff"]))
    timeline = await gathering
    assert [each.name for each in timeline.services] == ["s"]
    assert any("what cannot be read" in each for each in timeline.missing)
    # Nobody waits for it any more.
    it.timelines.on_frames(session, part)


async def test_executors_only_where_they_are_asked_for() -> None:
    it = World()
    _, stream = it.executor("e")
    timeline = await it.gather(pb.TimelineRequest(last_ns=1))
    assert [each.name for each in timeline.services] == ["s"]
    assert not stream.sent


async def test_a_scheduler_that_records_nothing() -> None:
    it = Timelines(NO_TIMELINE, list)
    with pytest.raises(Unavailable, match="--timeline-seconds=0"):
        await anext(it.collect(ASK))
