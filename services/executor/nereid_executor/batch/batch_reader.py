"""Reader of the scheduler's Batch messages.

Cutting ids, heads and inline tensors out of the frame takes a fifth of the time of protobuf. All
other messages are parsed with protobuf, with the same result.
"""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from nereid.core.wire.varint import decode_varint
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2

# First byte of each field. One byte suffices, since all field numbers are below 16.
_ID: Final = pb.Batch.ID_FIELD_NUMBER << 3 | _VARINT
_MEMBER: Final = pb.Batch.MEMBERS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_HEAD: Final = pb.BatchMember.HEAD_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_PAYLOAD: Final = pb.BatchMember.PAYLOADS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_INLINE: Final = pb.Payload.INLINE_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_REQUEST_ID: Final = pb.BatchMember.REQUEST_ID_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_REMAINING_US: Final = pb.BatchMember.REMAINING_US_FIELD_NUMBER << 3 | _VARINT
_TIMEOUT_US: Final = pb.BatchMember.TIMEOUT_US_FIELD_NUMBER << 3 | _VARINT
_MEMBER_ID: Final = pb.BatchMember.ID_FIELD_NUMBER << 3 | _VARINT


class BatchRequest:
    """One request of a batch. Most requests have nothing but what __init__() takes."""

    remaining_us: int = 0
    timeout_us: int = 0
    trace_context: bytes = b""
    # The message's map; `None` if the request has no parameters.
    parameters: Any = None

    def __init__(
        self,
        id: int,  # noqa: A002 (as in the message)
        head: bytes,
        tensors: list[Any],
        request_id: str = "",
    ) -> None:
        self.id = id
        self.head = head
        self.tensors = tensors
        self.request_id = request_id
        # True if some tensors are in shared memory.
        self.is_shared = False


class BatchMessage:
    """One Batch message. Parsed members are present only for a model with sequence states."""

    __slots__ = ("controls", "exported_slots", "frame_bytes", "id", "members", "requests", "traced")

    def __init__(  # noqa: PLR0913 (a record)
        self,
        id: int,  # noqa: A002 (as in the message)
        requests: list[BatchRequest],
        frame_bytes: int = 0,
        *,
        traced: bool = False,
        members: Sequence[pb.BatchMember] = (),
        controls: Sequence[pb.MemberControl] = (),
        exported_slots: Sequence[int] = (),
    ) -> None:
        self.id = id
        self.requests = requests
        self.frame_bytes = frame_bytes
        self.traced = traced
        self.members = members
        self.controls = controls
        self.exported_slots = exported_slots


def read_batch(frame: bytes) -> BatchMessage:
    """Read a Batch without parsed members; raise DecodeError if the frame is not a Batch."""
    return _cut_batch(frame) or parse_batch(frame)


def parse_batch(frame: bytes) -> BatchMessage:
    """Parse a Batch with its members; raise DecodeError if the frame is not a Batch."""
    message = pb.Batch.FromString(frame)
    # Iteration over a repeated field ends with an exception, which costs more than indexing.
    members = message.members[:]
    return BatchMessage(
        message.id,
        [request_of(member) for member in members],
        len(frame),
        traced=message.traced,
        members=members,
        controls=message.controls[:],
        exported_slots=message.exported_slots,
    )


def request_of(member: pb.BatchMember) -> BatchRequest:
    """Return the request of a parsed member."""
    tensors: list[Any] = []
    request = BatchRequest(member.id, member.head, tensors, member.request_id)
    request.remaining_us, request.timeout_us = member.remaining_us, member.timeout_us
    request.trace_context, request.parameters = member.trace_context, member.parameters or None
    for payload in member.payloads[:]:
        raw = payload.inline
        if not raw and payload.HasField("shared_memory"):
            request.is_shared = True
            tensors.append(payload.shared_memory)
        else:
            tensors.append(raw)
    return request


def _cut_batch(frame: bytes) -> BatchMessage | None:
    """Cut the requests out of a frame; return `None` if protobuf has to parse the frame."""
    end = len(frame)
    requests: list[BatchRequest] = []
    try:
        if not end or frame[0] != _ID:
            return None
        number, position = decode_varint(frame, 1)
        while position < end:
            if frame[position] != _MEMBER:
                return None
            size, position = decode_varint(frame, position + 1)
            request = _cut_request(frame, position, position + size)
            if request is None:
                return None
            requests.append(request)
            position += size
    except (DecodeError, IndexError, UnicodeDecodeError):
        return None
    return BatchMessage(number, requests, end) if position == end else None


def _cut_request(  # noqa: C901, PLR0912 (one loop over the fields)
    frame: bytes, position: int, end: int
) -> BatchRequest | None:
    """Cut out a member, or return `None`. In a damaged frame, end may lie beyond the frame."""
    number, head, request_id = 0, b"", ""
    remaining_us = timeout_us = 0
    tensors: list[Any] = []
    while position < end:
        tag = frame[position]
        value, position = decode_varint(frame, position + 1)
        if tag == _PAYLOAD:
            behind = position + value
            if frame[position] != _INLINE:
                return None
            size, position = decode_varint(frame, position + 1)
            if position + size != behind:
                return None
            tensors.append(frame[position:behind])
            position = behind
        elif tag == _HEAD:
            head = frame[position : position + value]
            position += value
        elif tag == _REQUEST_ID:
            request_id = frame[position : position + value].decode()
            position += value
        elif tag == _MEMBER_ID:
            number = value
        elif tag == _REMAINING_US:
            remaining_us = value
        elif tag == _TIMEOUT_US:
            timeout_us = value
        else:
            return None
    if position != end or end > len(frame):
        return None
    request = BatchRequest(number, head, tensors, request_id)
    if remaining_us:
        request.remaining_us = remaining_us
    if timeout_us:
        request.timeout_us = timeout_us
    return request
