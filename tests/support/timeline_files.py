"""Writes timelines as files, which the services of a mesh make together: each sends its part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nereid.pb import nereid_pb2 as pb
from nereid.timeline import wire
from nereid.timeline.records import ServiceTimeline, Timeline


def write_timeline(timeline: Timeline) -> bytes:
    """The file of a timeline; records of a service keep their order, but those of one kind come
    together.
    """
    return b"".join(map(wire.file_part, _frames(timeline)))


def _frames(timeline: Timeline) -> Iterator[bytes]:
    yield wire.epoch_frame(timeline.epoch_ns)
    for service in timeline.services:
        yield from _service_frames(service)
    yield from map(wire.missing_frame, timeline.missing)


def _service_frames(service: ServiceTimeline) -> Iterator[bytes]:
    yield wire.service_frame(
        pb.TimelineService(
            kind=service.kind,
            name=service.name,
            offset_ns=service.offset_ns,
            error_ns=service.error_ns,
            from_ns=service.from_ns,
            to_ns=service.to_ns,
        )
    )
    by_kind: dict[type[Any], list[Any]] = {}
    for record in service.records:
        by_kind.setdefault(type(record), []).append(record)
    for kind, records in by_kind.items():
        yield from wire.records_frames(kind, records)
