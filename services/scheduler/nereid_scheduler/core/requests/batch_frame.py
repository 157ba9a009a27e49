"""Serialises batches of plain requests by joining bytes, without protobuf message objects.

Message objects take twice the time per member. Members that have more than a head and payloads are
left to `batch_message` in remote_instance.py.
"""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.bounded_cache import BoundedCache
from nereid.core.wire.codecs import remaining_us
from nereid.core.wire.varint import VarintSequence, encode_varint
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_scheduler.core.requests.entry import Batch

_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
# Longer frames are left to protobuf, which reports its own errors at its limit of 2 GiB.
_MAX_BYTES: Final = 1 << 30


class MemberLayout(NamedTuple):
    """Bytes before each payload of a member with a certain head, and the size of the member."""

    prefixes: tuple[bytes, ...]
    # Size of all prefixes and payloads together.
    size_bytes: int


def member_layout(head: bytes, sizes: Sequence[int | None]) -> MemberLayout | None:
    """Return the layout of a member with these payload sizes; `None` if any is not known."""
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return None
    prefixes = []
    for size in known:
        inline = _tag(pb.Payload.INLINE_FIELD_NUMBER) + encode_varint(size)
        payload = _tag(pb.BatchMember.PAYLOADS_FIELD_NUMBER) + encode_varint(len(inline) + size)
        prefixes.append(payload + inline)
    prefixes[0] = (
        _tag(pb.BatchMember.HEAD_FIELD_NUMBER) + encode_varint(len(head)) + head + prefixes[0]
    )
    return MemberLayout(tuple(prefixes), sum(map(len, prefixes)) + sum(known))


def _tag(number: int, kind: int = _LENGTH_DELIMITED) -> bytes:
    return encode_varint(number << 3 | kind)


_NUMBER: Final = _tag(pb.Batch.ID_FIELD_NUMBER, _VARINT)
_MEMBER: Final = _tag(pb.Batch.MEMBERS_FIELD_NUMBER)
_ID: Final = _tag(pb.BatchMember.ID_FIELD_NUMBER, _VARINT)
_REQUEST_ID: Final = _tag(pb.BatchMember.REQUEST_ID_FIELD_NUMBER)
_REMAINING_US: Final = _tag(pb.BatchMember.REMAINING_US_FIELD_NUMBER, _VARINT)
_TIMEOUT_US: Final = _tag(pb.BatchMember.TIMEOUT_US_FIELD_NUMBER, _VARINT)

_ids: Final = VarintSequence()
# Key: size of a member. Value: tag and length before it.
_starts: Final = BoundedCache[int, bytes](1024)


def plain_batch_frame(number: int, batch: Batch, now_ns: int) -> bytes | None:
    """Return a serialised Batch, or `None` if a member needs a message object."""
    pieces: list[bytes | memoryview] = [_NUMBER + encode_varint(number)]
    for entry in batch.entries:
        request, layout = entry.request, entry.valid.layout
        if (
            layout is None
            or request.parameters
            or request.trace_context
            or entry.member is not None
        ):
            return None
        tail = _ID + _ids.encode(request.id)
        if request.request_id:
            text = request.request_id.encode()
            tail += _REQUEST_ID + encode_varint(len(text)) + text
        if request.deadline is not None:
            tail += _REMAINING_US + encode_varint(remaining_us(request.deadline, now_ns / 1e9))
        if request.timeout_us:
            tail += _TIMEOUT_US + encode_varint(request.timeout_us)
        size = layout.size_bytes + len(tail)
        start = _starts.get(size) or _starts.remember(size, _MEMBER + encode_varint(size))
        payloads = request.payloads
        if len(payloads) == 1 and isinstance(payloads[0], bytes):
            pieces += (start, layout.prefixes[0], payloads[0], tail)
            continue
        pieces.append(start)
        for prefix, payload in zip(layout.prefixes, payloads):  # noqa: B905 - validated
            if isinstance(payload, SharedMemory):
                return None
            pieces += (prefix, payload)
        pieces.append(tail)
    frame = b"".join(pieces)
    return frame if len(frame) < _MAX_BYTES else None
