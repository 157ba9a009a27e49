"""Messages of both protocols, decoded as a gateway without regions does it, but all at once."""

from __future__ import annotations

from typing import Any

from nereid.core.errors import NereidError
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.tensors.tensor_memory import MessageBuffer
from nereid_gateway.fronts.grpc.infer_codec import GrpcDecoder, GrpcMessage
from nereid_gateway.fronts.http.inference.infer_request import (
    HttpMessage,
    InferRequestDecoder,
    ResponseForm,
)
from nereid_gateway.plane.client_shm.regions import NO_REGIONS
from nereid_gateway.plane.request_decoding import InferMessage, RequestDecoding
from tests.support.gateway.decoder_jobs import run_here

_NOT_NEEDED: Any = None
_DECODING = RequestDecoding(_NOT_NEEDED, NO_REGIONS, _NOT_NEEDED)


def decode_http(
    decoder: InferRequestDecoder, body: bytes | MessageBuffer, length: int
) -> tuple[ClientRequest, ResponseForm]:
    """length: bytes of the JSON header."""
    message = HttpMessage(decoder, body, b"%d" % length)
    request = _decode(message)
    return request, message.form


def decode_grpc(decoder: GrpcDecoder, data: bytes | MessageBuffer) -> ClientRequest:
    known = decoder.layouts.read(data) if isinstance(data, bytes) else None
    return _decode(GrpcMessage(decoder, data)) if known is None else known


async def decode_http_in_process(
    decoder: InferRequestDecoder, body: bytes | MessageBuffer, length: int
) -> tuple[ClientRequest, ResponseForm]:
    """As a decoder process and its gateway do it. length: bytes of the JSON header."""
    message = HttpMessage(decoder, body, b"%d" % length)
    try:
        message.decoded = await message.decode_in_process(run_here)
        _DECODING.complete_now(*message.decoded)
    except NereidError as error:
        return message.error_request(error), message.form
    return message.decoded[0], message.form


def _decode(message: InferMessage) -> ClientRequest:
    decoded = message.decoded = message.decode()
    try:
        _DECODING.complete_now(*decoded)
    except NereidError as error:
        return message.error_request(error)
    return decoded[0]
