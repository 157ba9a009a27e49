"""Executed messages, put together from bytes that are known beforehand and bytes of outputs.

A protobuf message is the concatenation of its parts, so an answer whose outputs have known sizes is
a fixed prefix before each output's bytes; outputs are copied once, into the frame. Building the
same through message objects costs three copies and five times the time per member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.codecs import write_error, write_payloads
from nereid.core.datatypes import BYTES
from nereid.core.varint import encode_varint
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.core.classification import Classification
    from nereid.core.messages import ErrorStatus, Payload
    from nereid.services.executor.batch.arrays import Piece
    from nereid.services.executor.batch.request_plan import Signature

# The scheduler takes no larger message, and would end the stream of an instance that sends one.
LARGEST_FRAME_BYTES: Final = (1 << 31) - (1 << 16)
_LENGTH_DELIMITED = 2


class Form(NamedTuple):
    """The answers to requests with one head, when the outputs' rows have certain shapes."""

    head: bytes
    # The outputs' places among the batch's outputs.
    places: tuple[int, ...]
    # What stands in the frame before each output, and the output's place. None: there is no output,
    # or one is BYTES, so that lengths differ from answer to answer.
    parts: tuple[tuple[bytes, int], ...] | None
    # Of all outputs together, where parts are known.
    size_bytes: int = 0


def response_head(
    signature: Signature,
    outputs: Sequence[tuple[int, Classification | None]],
    shapes: Sequence[Sequence[int]],
) -> bytes:
    """A serialised ModelInferResponse without id and tensor data."""
    response = kserve_pb2.ModelInferResponse(
        model_name=signature.model_name, model_version=signature.model_version
    )
    for (index, classes), shape in zip(outputs, shapes, strict=True):
        spec = signature.outputs[index]
        datatype = BYTES if classes is not None else spec.datatype
        response.outputs.add(name=spec.name, datatype=datatype, shape=shape)
    return response.SerializeToString()


def prefixes(head: bytes, sizes: Sequence[int]) -> list[bytes]:
    """What an answer in an Executed message has before each of its outputs' bytes (one or more)."""
    payloads = []
    length = len(_field(pb.InferResponse.HEAD_FIELD_NUMBER, len(head))) + len(head)
    for size in sizes:
        inline = _field(pb.Payload.INLINE_FIELD_NUMBER, size)
        payload = _field(pb.InferResponse.PAYLOADS_FIELD_NUMBER, len(inline) + size) + inline
        payloads.append(payload)
        length += len(payload) + size
    start = _field(pb.Executed.RESPONSES_FIELD_NUMBER, length)
    start += _field(pb.InferResponse.HEAD_FIELD_NUMBER, len(head)) + head
    return [start + payloads[0], *payloads[1:]]


def wire_response(head: bytes, payloads: Sequence[Payload]) -> bytes:
    """An Executed message that holds just this answer."""
    executed = pb.Executed()
    message = executed.responses.add(head=head)
    write_payloads(payloads, message.payloads)
    return executed.SerializeToString()


def put(executed: pb.Executed, place: int, told: Iterable[Piece]) -> None:
    """Add to an Executed message in parts the answer, in pieces, of the member in this place."""
    executed.MergeFromString(b"".join(told))
    executed.responses[-1].id = place


def failure(error_status: ErrorStatus) -> bytes:
    """An Executed message that holds just this fault."""
    executed = pb.Executed()
    write_error(error_status, executed.responses.add().error)
    return executed.SerializeToString()


def _field(number: int, length: int) -> bytes:
    """The tag and length of a length-delimited field."""
    return encode_varint(number << 3 | _LENGTH_DELIMITED) + encode_varint(length)
