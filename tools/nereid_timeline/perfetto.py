"""Writes a trace as Perfetto's TrackEvent protobuf, for ui.perfetto.dev and trace_processor.

A trace has millions of small packets, so the encoding is by hand. Tags are perfetto_trace.proto's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.wire.varint import VarintSequence, encode_varint
from nereid_timeline.tracks import Count, Mark, Process, Slice, Track

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nereid_timeline.tracks import Arguments, Flow, Item

# Field of Trace: packet.
_PACKET: Final = b"\x0a"
# TracePacket: timestamp, track_event, track_descriptor, interned_data, clock_snapshot.
_TIMESTAMP: Final = b"\x40"
_TRACK_EVENT: Final = b"\x5a"
_TRACK_DESCRIPTOR: Final = b"\xe2\x03"
_INTERNED: Final = b"\x62"
_CLOCK_SNAPSHOT: Final = b"\x32"
# trusted_packet_sequence_id 1 and sequence_flags: 2 keeps declared names, 1 is the first packet.
_SEQUENCE: Final = b"\x50\x01\x68\x02"
_FIRST: Final = b"\x50\x01\x68\x01"
# TrackEvent: type, track_uuid, name_iid, debug_annotations, counter_value, flow_ids.
_TYPE: Final = b"\x48"
_TRACK_UUID: Final = b"\x58"
_NAME_IID: Final = b"\x50"
_ANNOTATION: Final = b"\x22"
_COUNTER_VALUE: Final = b"\xf0\x01"
_FLOW_ID: Final = b"\xf9\x02"
_BEGIN: Final = 1
_END: Final = 2
_INSTANT: Final = 3
_COUNTER: Final = 4
# InternedData: event_names, debug_annotation_names.
_EVENT_NAME: Final = b"\x12"
_ANNOTATION_NAME: Final = b"\x1a"
# The clock of the trace, and UNIX time.
_BOOTTIME: Final = 6
_REALTIME: Final = 1
# A process's id plus this is its track id. Ids of other tracks are smaller.
_PROCESS_UUIDS: Final = 1 << 32


def perfetto(items: Iterable[Item], epoch_ns: int = 0, at_ns: int = 0) -> Iterator[bytes]:
    """Yield a trace file in pieces; at_ns is any time in the trace.

    epoch_ns: UNIX time minus the trace's time; 0 if unknown.
    """
    writer = _Writer()
    yield _packet(_FIRST)
    if epoch_ns:
        clocks = b"".join(
            _bytes(b"\x0a", b"\x08" + encode_varint(clock) + b"\x10" + encode_varint(time))
            for clock, time in ((_BOOTTIME, at_ns), (_REALTIME, at_ns + epoch_ns))
        )
        yield _packet(_bytes(_CLOCK_SNAPSHOT, clocks))
    for item in items:
        match item:
            case Slice():
                yield writer.slice(item)
            case Count():
                yield writer.count(item)
            case Mark():
                yield writer.mark(item)
            case Track():
                yield _packet(_bytes(_TRACK_DESCRIPTOR, _track(item)))
            case Process():
                yield _packet(_bytes(_TRACK_DESCRIPTOR, _process(item)))


class _Writer:
    def __init__(self) -> None:
        self._times = VarintSequence()
        self._names: dict[str, int] = {}
        self._annotation_names: dict[str, int] = {}
        # Encoded names that the next packet has to declare.
        self._new = b""
        self._events: dict[tuple[int, int], bytes] = {}

    def slice(self, item: Slice) -> bytes:
        """Return the slice's begin and end events, with its children's events between them."""
        begin, end = self._event(_BEGIN, item.track), self._event(_END, item.track)
        rest = self._arguments(item.arguments) + _flows(item.flows)
        pieces = [self._packet(item.start, begin + self._name(item.name) + rest)]
        for name, start, stop in item.children:
            pieces += self._packet(start, begin + self._name(name)), self._packet(stop, end)
        pieces.append(self._packet(item.end, end))
        return b"".join(pieces)

    def mark(self, item: Mark) -> bytes:
        event = self._event(_INSTANT, item.track) + self._name(item.name)
        return self._packet(item.time, event + self._arguments(item.arguments))

    def count(self, item: Count) -> bytes:
        value = _COUNTER_VALUE + encode_varint(max(item.value, 0))
        return self._packet(item.time, self._event(_COUNTER, item.track) + value)

    def _event(self, kind: int, track: int) -> bytes:
        event = self._events.get((kind, track))
        if event is None:
            event = _TYPE + encode_varint(kind) + _TRACK_UUID + encode_varint(track)
            self._events[kind, track] = event
        return event

    def _packet(self, time: int, event: bytes) -> bytes:
        body = _TIMESTAMP + self._times.encode(time) + _SEQUENCE + _bytes(_TRACK_EVENT, event)
        if self._new:
            body += _bytes(_INTERNED, self._new)
            self._new = b""
        return _packet(body)

    def _name(self, name: str) -> bytes:
        return _NAME_IID + self._interned(name, self._names, _EVENT_NAME)

    def _arguments(self, arguments: Arguments) -> bytes:
        pieces = []
        for name, value in arguments:
            argument = b"\x08" + self._interned(name, self._annotation_names, _ANNOTATION_NAME)
            if isinstance(value, int):
                argument += b"\x18" + encode_varint(value)
            else:
                argument += _bytes(b"\x32", value.encode())
            pieces.append(_bytes(_ANNOTATION, argument))
        return b"".join(pieces)

    def _interned(self, name: str, known: dict[str, int], tag: bytes) -> bytes:
        number = known.get(name)
        if number is None:
            number = known[name] = len(known) + 1
            entry = b"\x08" + encode_varint(number) + _bytes(b"\x12", name.encode())
            self._new += _bytes(tag, entry)
        return encode_varint(number)


def _flows(flows: tuple[Flow, ...]) -> bytes:
    return b"".join([_FLOW_ID + flow.id.to_bytes(8, "little") for flow in flows])


def _process(process: Process) -> bytes:
    descriptor = b"\x08" + encode_varint(process.id) + _bytes(b"\x32", process.name.encode())
    return b"\x08" + encode_varint(_PROCESS_UUIDS + process.id) + _bytes(b"\x1a", descriptor)


def _track(track: Track) -> bytes:
    described = (
        b"\x08" + encode_varint(track.id)
        + b"\x28" + encode_varint(_PROCESS_UUIDS + track.process)
        + _bytes(b"\x12", track.name.encode())
    )  # fmt: skip
    return described + _bytes(b"\x42", b"") if track.counter else described


def _packet(body: bytes) -> bytes:
    return _bytes(_PACKET, body)


def _bytes(tag: bytes, value: bytes) -> bytes:
    return tag + encode_varint(len(value)) + value
