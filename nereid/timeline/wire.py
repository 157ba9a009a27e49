"""Timelines as bytes, between services and in files (TimelineFile, protos/nereid.proto)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, get_type_hints

from google.protobuf.message import DecodeError

from nereid.core.wire.varint import encode_varint
from nereid.pb import nereid_pb2 as pb
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

CONTENT_TYPE: Final = "application/vnd.nereid.timeline"

# Records per frame, members included. Writing or reading such a frame takes about 1 ms.
PIECE_RECORDS: Final = 512
# Limits of read_timeline() on bytes and records. A service keeps 16 MiB of each kind at most.
MAX_BYTES: Final = 256 << 20
MAX_RECORDS: Final = 20_000_000

_MEMBERS: Final = "members"
_TOO_LARGE: Final = "the timeline has more than {} {}: ask for fewer seconds"


class TimelineError(ValueError):
    """Error for bytes that are no timeline, or for a timeline that exceeds the limits."""


class _Layout(NamedTuple):
    record: type[Any]
    # For each column: true if the column holds texts, false if it holds numbers.
    texts: tuple[bool, ...]
    # Index of the column with the number of members of each record; -1 if there is none.
    members: int


def _layout_of(record: type[Any]) -> _Layout:
    hints = get_type_hints(record)
    fields: tuple[str, ...] = record._fields
    texts = tuple(hints[name] is str for name in fields)
    return _Layout(record, texts, fields.index(_MEMBERS) if _MEMBERS in fields else -1)


# Key: TimelineRecords.kind, whose numbers never change.
_LAYOUTS: Final = {
    kind: _layout_of(record)
    for kind, record in enumerate(
        (GatewayRequest, BatchRecord, EndedRequest, Wait, ExecutionRecord, Event), 1
    )
}
_KINDS: Final = {layout.record: kind for kind, layout in _LAYOUTS.items()}
_MEMBER: Final = _layout_of(Member)


def file_part(frame: bytes) -> bytes:
    """Return a frame as a part of a file; the parts, one after the other, make a file."""
    # A field of TimelineFile: tag, length, and the frame, which is not parsed.
    return b"\n" + encode_varint(len(frame)) + frame


def epoch_frame(epoch_ns: int) -> bytes:
    """Return a frame with the number to add to times of the asked service to get UNIX time."""
    return pb.TimelineFrame(epoch_ns=epoch_ns).SerializeToString()


def service_frame(service: pb.TimelineService) -> bytes:
    """Return a frame that names a service; the frames after it hold the service's records."""
    return pb.TimelineFrame(service=service).SerializeToString()


def missing_frame(why: str) -> bytes:
    """Return a frame that names a service that did not respond, with the reason."""
    return pb.TimelineFrame(missing=why).SerializeToString()


def records_frames(record: type[Any], records: Iterable[Any]) -> Iterator[bytes]:
    """Yield frames of PIECE_RECORDS or a few more, each made when it is requested."""
    members = _LAYOUTS[_KINDS[record]].members
    piece: list[Any] = []
    size = 0
    for entry in records:
        piece.append(entry)
        size += 1 if members < 0 else 1 + len(entry[members])
        if size >= PIECE_RECORDS:
            yield _records_frame(record, piece)
            piece, size = [], 0
    if piece:
        yield _records_frame(record, piece)


def _records_frame(record: type[Any], records: Sequence[Any]) -> bytes:
    kind = _KINDS[record]
    layout = _LAYOUTS[kind]
    strings: dict[str, int] = {}
    message = pb.TimelineRecords(kind=kind, count=len(records))
    columns: list[Any] = list(zip(*records, strict=True))
    if layout.members >= 0:
        members = columns[layout.members]
        # Write the number of members in place of the members.
        columns[layout.members] = list(map(len, members))
        every = [member for some in members for member in some]
        _write_columns(message.member_columns, zip(*every, strict=True), _MEMBER.texts, strings)
    _write_columns(message.columns, columns, layout.texts, strings)
    message.strings.extend(strings)
    return pb.TimelineFrame(records=message.SerializeToString()).SerializeToString()


def _write_columns(
    target: Any, columns: Iterable[Sequence[Any]], texts: Sequence[bool], strings: dict[str, int]
) -> None:
    for column, is_text in zip(columns, texts, strict=False):
        values = column
        if is_text:
            values = [strings.setdefault(text, len(strings)) for text in column]
        target.add().values.extend(values)


@dataclass(slots=True)
class _Budget:
    left: int

    def spend(self, count: int) -> None:
        """Subtract the records that are about to be read, or raise TimelineError."""
        self.left -= count
        if self.left < 0:
            raise TimelineError(_TOO_LARGE.format(MAX_RECORDS, "records"))


def read_timeline(
    data: bytes, *, max_bytes: int = MAX_BYTES, max_records: int = MAX_RECORDS
) -> Timeline:
    """Return a file's timeline; raise TimelineError if it is none or exceeds a limit."""
    if len(data) > max_bytes:
        raise TimelineError(_TOO_LARGE.format(max_bytes, "bytes"))
    try:
        frames = pb.TimelineFile.FromString(data).frames
    except DecodeError as error:
        raise TimelineError("this is no timeline, or a part of one is missing") from error
    timeline = Timeline()
    budget = _Budget(max_records)
    for frame in frames:
        kind = frame.WhichOneof("frame")
        if kind == "service":
            timeline.services.append(_read_service(frame.service))
        elif kind == "records":
            if not timeline.services:
                raise TimelineError("records come before the service that they are of")
            timeline.services[-1].records += _read_records(frame.records, budget)
        elif kind == "missing":
            timeline.missing.append(frame.missing)
        elif kind == "epoch_ns":
            timeline.epoch_ns = frame.epoch_ns
    return timeline


def _read_service(service: pb.TimelineService) -> ServiceTimeline:
    return ServiceTimeline(
        kind=service.kind,
        name=service.name,
        offset_ns=service.offset_ns,
        error_ns=service.error_ns,
        from_ns=service.from_ns,
        to_ns=service.to_ns,
    )


def _read_records(data: bytes, budget: _Budget) -> list[Record]:
    try:
        message = pb.TimelineRecords.FromString(data)
    except DecodeError as error:
        raise TimelineError("records of the timeline cannot be read") from error
    layout = _LAYOUTS.get(message.kind)
    if layout is None:
        return []
    count, strings = message.count, message.strings
    # A small file may contain a large count, so check before anything is allocated.
    if not message.columns or count != len(message.columns[0].values):
        raise TimelineError(f"{count} records of the timeline have columns of other lengths")
    budget.spend(count)
    columns = _read_columns(message.columns, count, layout.texts, strings)
    if layout.members >= 0:
        columns[layout.members] = _read_members(message, columns[layout.members], budget)
    return cast("list[Record]", list(map(layout.record._make, zip(*columns, strict=True))))


def _read_members(
    message: pb.TimelineRecords, sizes: Sequence[int], budget: _Budget
) -> list[tuple[Member, ...]]:
    columns = message.member_columns
    total = len(columns[0].values) if columns else 0
    if sum(sizes) != total:
        raise TimelineError(f"{total} members of batches, and {sum(sizes)} are announced")
    budget.spend(total)
    read = _read_columns(columns, total, _MEMBER.texts, message.strings)
    every = list(map(Member._make, zip(*read, strict=True)))
    members = []
    start = 0
    for size in sizes:
        members.append(tuple(every[start : start + size]))
        start += size
    return members


def _read_columns(
    columns: Sequence[pb.TimelineColumn],
    count: int,
    texts: Sequence[bool],
    strings: Sequence[str],
) -> list[Any]:
    """Return the columns; fill missing ones and ignore surplus ones of other releases."""
    table = list(strings)
    read: list[Any] = []
    for place, is_text in enumerate(texts):
        if place >= len(columns):
            read.append([("" if is_text else 0)] * count)
            continue
        values: list[Any] = list(columns[place].values)
        if len(values) != count:
            raise TimelineError(f"{count} records of the timeline have {len(values)} values")
        if is_text:
            if values and max(values) >= len(table):
                raise TimelineError("a text of the timeline is missing")
            values = [table[value] for value in values]
        read.append(values)
    return read
