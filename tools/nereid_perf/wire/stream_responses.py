"""Reads a stream's response from its bytes: decoding takes longer than all other work for it."""

from __future__ import annotations

from typing import Final, NamedTuple

from nereid.pb import kserve_pb2 as pb
from nereid_perf.server_stats.server_timing import STREAM_PARAMETER

# Tag and length of the id, field 3 of requests and responses; ids have eight digits here.
_ID_TAG: Final = b"\x1a\x08"
_ID_BYTES: Final = 8
# Entry of the map of parameters: the key, then InferParameter.bool_param.
_FINAL: Final = b"triton_final_response\x12\x02\x08\x01"
_ERROR_TAG: Final = 0x0A
# Only lengths, model and version come before the id.
_LAST_ID_PLACE: Final = 1 << 10
_WANTS_FINAL: Final = pb.ModelInferRequest(
    parameters={"triton_enable_empty_final_response": pb.InferParameter(bool_param=True)}
).SerializeToString()


class StreamResponse(NamedTuple):
    """A response on a stream; key may be b"". is_empty: it says only that it is the last one."""

    key: bytes
    error: str
    is_last: bool
    is_empty: bool


def request_suffix(number: int, *, decoupled: bool) -> tuple[bytes, bytes]:
    """Return a key, and bytes to append to a serialized request, which set the key as its id.

    Protobuf takes the last value of a field that comes twice.
    """
    key = b"%08x" % (number & 0xFFFFFFFF)
    return key, _ID_TAG + key + (_WANTS_FINAL if decoupled else b"")


def read_response(message: bytes, *, decoupled: bool) -> StreamResponse:
    """Read a response to a request whose id was set by request_suffix()."""
    if not message or message[0] == _ERROR_TAG:
        response = pb.ModelStreamInferResponse.FromString(message)
        if response.error_message:
            key = response.infer_response.id.encode()
            return StreamResponse(key, response.error_message, is_last=True, is_empty=True)
    at = message.find(_ID_TAG, 0, _LAST_ID_PLACE)
    key = b"" if at < 0 else message[at + 2 : at + 2 + _ID_BYTES]
    if not decoupled:
        return StreamResponse(key, "", is_last=True, is_empty=False)
    if message.find(_FINAL) < 0:
        return StreamResponse(key, "", is_last=False, is_empty=False)
    found = pb.ModelStreamInferResponse.FromString(message).infer_response
    final = found.parameters.get("triton_final_response")
    is_last = final is not None and final.bool_param
    is_empty = is_last and not found.outputs
    return StreamResponse(key, "", is_last=is_last, is_empty=is_empty)


def infer_response(message: bytes) -> bytes:
    """Return the ModelInferResponse in the message."""
    return pb.ModelStreamInferResponse.FromString(message).infer_response.SerializeToString()


def server_timing(message: bytes) -> str:
    """Return the response's Server-Timing, or "" if it has none."""
    parameters = pb.ModelStreamInferResponse.FromString(message).infer_response.parameters
    return parameters[STREAM_PARAMETER].string_param if STREAM_PARAMETER in parameters else ""
