"""Executed messages, concatenated from precomputed bytes and the bytes of outputs.

A protobuf message is the concatenation of its parts. Building it from objects takes three copies,
and five times the time per member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.tensors.datatypes import BYTES
from nereid.core.wire.codecs import write_error, write_payloads
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.core.tensors.classification import Classification
    from nereid.core.wire.messages import ErrorStatus, Payload
    from nereid_executor.batch.arrays import Piece
    from nereid_executor.batch.request_plan import Signature

# The scheduler ends the stream of an instance that sends more bytes in a message.
MAX_EXECUTED_BYTES: Final = (1 << 31) - (1 << 16)
# The model asks to get the request again.
RESCHEDULED: Final = (
    pb.Executed(responses=[pb.InferResponse(rescheduled=True)]).SerializeToString(),
)


class ResponseLayout(NamedTuple):
    """Layout of responses to requests with one head, if output rows have certain shapes."""

    head: bytes
    # Index of each output of the response among the batch's outputs.
    indices: tuple[int, ...]
    # For each output, the bytes before it and its index. `None` without outputs, or if one is
    # BYTES, whose size differs from response to response.
    parts: tuple[tuple[bytes, int], ...] | None
    # Bytes of all outputs together, if `parts` is not `None`.
    size_bytes: int = 0


def response_head(
    signature: Signature,
    outputs: Sequence[tuple[int, Classification | None]],
    shapes: Sequence[Sequence[int]],
) -> bytes:
    """Return a serialised ModelInferResponse without id and without tensor data."""
    response = kserve_pb2.ModelInferResponse(
        model_name=signature.model_name, model_version=signature.model_version
    )
    for (index, classes), shape in zip(outputs, shapes, strict=True):
        spec = signature.outputs[index]
        datatype = BYTES if classes is not None else spec.datatype
        response.outputs.add(name=spec.name, datatype=datatype, shape=shape)
    return response.SerializeToString()


def encode_response(head: bytes, payloads: Sequence[Payload]) -> bytes:
    """Return an Executed message with one response."""
    reply = pb.Executed()
    message = reply.responses.add(head=head)
    write_payloads(payloads, message.payloads)
    return reply.SerializeToString()


def append_response(reply: pb.Executed, place: int, pieces: Iterable[Piece]) -> None:
    """Add the response to the member at this index to a partial Executed message."""
    reply.MergeFromString(b"".join(pieces))
    reply.responses[-1].id = place


def error_response(error_status: ErrorStatus) -> bytes:
    """Return an Executed message with one response that is an error."""
    reply = pb.Executed()
    write_error(error_status, reply.responses.add().error)
    return reply.SerializeToString()
