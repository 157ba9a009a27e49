"""Timelines as bytes: both ways, over releases, and what is no timeline."""

from __future__ import annotations

import random
import string

import pytest

from nereid.pb import nereid_pb2 as pb
from nereid.timeline import wire
from nereid.timeline.records import (
    BatchRecord,
    EndedRequest,
    Event,
    ExecutionRecord,
    GatewayRequest,
    Member,
    Record,
    ServiceTimeline,
    Timeline,
    Wait,
)
from nereid.timeline.wire import TimelineError, read_timeline
from tests.support.timeline_files import write_timeline

NUMBER = (1 << 60) + 7


def batch(number: int, size: int) -> BatchRecord:
    members = tuple(Member(NUMBER + each, 5, 6, each % 2) for each in range(size))
    return BatchRecord("m", "1", "m_0", "e", number, size, members, 1, 2, 3, 4, 5, 6, 7, "lost")


RECORDS: list[Record] = [
    GatewayRequest(NUMBER, "m", "", "http", "é", "ab" * 16, 1, 4, 14),
    batch(1, 3),
    batch(2, 0),
    EndedRequest(NUMBER, "m", "1", 1, 2, 3, "cache hit", 0),
    Wait("m", "1", "delay", 1, 2, 3),
    ExecutionRecord("m", "1", "m_0", 1, 3, 1, 2, 3, 4, 5, 6, 7),
    Event("load", "'m' version 1", 1, 0, ""),
]


def whole() -> Timeline:
    services = [
        ServiceTimeline("gateway", "g", 0, 0, 1, 10, RECORDS[:1]),
        ServiceTimeline("scheduler", "s", -5, 2, 1, 10, RECORDS[1:5]),
        ServiceTimeline("executor", "e", 1 << 62, 2, 1, 10, RECORDS[5:]),
        ServiceTimeline("executor", "empty"),
    ]
    return Timeline(1 << 60, services, ["scheduler 2 of 2: unreachable"])


def service_frame() -> bytes:
    return wire.service_frame(pb.TimelineService(kind="scheduler", name="s"))


def file_of(*frames: bytes) -> bytes:
    return b"".join(map(wire.file_part, frames))


def records_frame(message: pb.TimelineRecords) -> bytes:
    return pb.TimelineFrame(records=message.SerializeToString()).SerializeToString()


def test_what_is_written_is_read() -> None:
    assert read_timeline(write_timeline(whole())) == whole()
    assert read_timeline(b"") == Timeline()


def test_a_file_is_its_parts() -> None:
    frames = pb.TimelineFile.FromString(write_timeline(whole())).frames
    parts = [wire.file_part(each.SerializeToString()) for each in frames]
    assert read_timeline(b"".join(parts)) == whole()


def test_pieces_are_small_and_lose_nothing() -> None:
    records = [batch(number, number % 100) for number in range(300)]
    frames = list(wire.records_frames(BatchRecord, records))
    read = read_timeline(file_of(service_frame(), *frames)).services[0].records
    assert read == records
    for frame in frames:
        message = pb.TimelineRecords.FromString(pb.TimelineFrame.FromString(frame).records)
        members = len(message.member_columns[0].values) if message.member_columns else 0
        assert message.count + members <= wire.PIECE_RECORDS + 100


def test_records_of_a_newer_release() -> None:
    message = pb.TimelineRecords(kind=4, count=1, strings=["m", "1", "delay"])
    for values in ([0], [1], [2], [10], [20], [3], [99]):
        message.columns.add(values=values)
    unknown = pb.TimelineRecords(kind=77, count=1)
    unknown.columns.add(values=[1])
    data = file_of(service_frame(), records_frame(message), records_frame(unknown))
    assert read_timeline(data).services[0].records == [Wait("m", "1", "delay", 10, 20, 3)]


def test_records_of_an_older_release() -> None:
    message = pb.TimelineRecords(kind=6, count=2, strings=["load", "m"])
    for values in ([0, 0], [1, 1]):
        message.columns.add(values=values)
    read = read_timeline(file_of(service_frame(), records_frame(message))).services[0].records
    assert read == [Event("load", "m", 0, 0, "")] * 2


def _changed(**changes: object) -> bytes:
    """A file with one batch of two members, changed."""
    frame = pb.TimelineFrame.FromString(next(wire.records_frames(BatchRecord, [batch(1, 2)])))
    message = pb.TimelineRecords.FromString(frame.records)
    if "count" in changes:
        message.count = 1 << 30
    if "columns" in changes:
        message.columns[4].values.append(1)
    if "members" in changes:
        message.member_columns[0].values.append(1)
    if "announced" in changes:
        message.columns[6].values[0] = 1 << 40
    if "strings" in changes:
        del message.strings[:]
    return file_of(service_frame(), records_frame(message))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"{}", "no timeline"),
        (write_timeline(whole())[:-1], "no timeline"),
        (file_of(*wire.records_frames(BatchRecord, [batch(1, 2)])), "before the service"),
        (_changed(count=True), "columns of other lengths"),
        (_changed(columns=True), "1 records of the timeline have 2 values"),
        (_changed(members=True), "3 members"),
        (_changed(announced=True), "are announced"),
        (_changed(strings=True), "a text"),
        (file_of(service_frame(), b"\x12\x02\xff\xff"), "cannot be read"),
    ],
)
def test_what_cannot_be_read(data: bytes, text: str) -> None:
    with pytest.raises(TimelineError, match=text):
        read_timeline(data)


def test_too_much_is_refused() -> None:
    data = write_timeline(whole())
    with pytest.raises(TimelineError, match="bytes: ask for fewer seconds"):
        read_timeline(data, max_bytes=len(data) - 1)
    with pytest.raises(TimelineError, match="records: ask for fewer seconds"):
        read_timeline(data, max_records=len(RECORDS) + 2)
    assert read_timeline(data, max_records=len(RECORDS) + 3) == whole()


def test_damaged_bytes_are_read_or_refused() -> None:
    good = write_timeline(whole())
    chosen = random.Random(7)
    refused = 0
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chosen.randrange(1, 4)):
            place = chosen.randrange(len(data))
            match chosen.randrange(3):
                case 0:
                    data[place] = chosen.randrange(256)
                case 1:
                    del data[place : place + chosen.randrange(1, 9)]
                case _:
                    data[place:place] = chosen.choice(string.printable).encode() * 3
        try:
            read = read_timeline(bytes(data))
        except TimelineError:
            refused += 1
        else:
            assert sum(len(each.records) for each in read.services) <= len(data)
    assert 0 < refused < 3000
