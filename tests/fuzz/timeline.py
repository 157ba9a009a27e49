"""Timelines of other services and of files: they are read, written and read again as they were, or
refused.
"""

from __future__ import annotations

from nereid.timeline.records import (
    BatchRecord,
    Event,
    GatewayRequest,
    Member,
    ServiceTimeline,
    Timeline,
)
from nereid.timeline.wire import TimelineError, read_timeline
from tests.support.timeline_files import write_timeline

MAX_BYTES = 4096
_MEMBERS = (Member(1 << 60, 1, 2, 0), Member(7, 3, 4, 1))
_SCHEDULER = ServiceTimeline(
    "scheduler",
    "s",
    -1,
    2,
    3,
    4,
    [
        BatchRecord("m", "1", "i", "e", 1, 2, _MEMBERS, 1, 2, 3, 4, 5, 6, 7),
        Event("load", "m", 1, 2, "é"),
    ],
)
_GATEWAY = ServiceTimeline(
    "gateway", "g", records=[GatewayRequest(7, "m", "", "grpc", "id", "", 1, 4, 5)]
)
SEEDS = [
    write_timeline(Timeline(1 << 60, [_GATEWAY, _SCHEDULER], ["executor 'e': lost"])),
    write_timeline(Timeline(0, [_GATEWAY] * 2)),
    b"",
]
WORDS = [b"\n", b"\x12", b"\x1a", b"\x22\x02\x08\x01", b"\xff" * 9 + b"\x01", b"\x00" * 4]


def run(data: bytes) -> None:
    try:
        timeline = read_timeline(data, max_records=1 << 16)
    except TimelineError:
        return
    assert read_timeline(write_timeline(timeline)) == timeline
