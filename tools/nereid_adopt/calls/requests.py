"""Parts of inference requests that the proxy looks at: sequences, and regions of shared memory.

Most HTTP requests have neither, so that their JSON is only searched for a word.
"""

# layout: compiled

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping  # noqa: TC003 - mypyc reads the fields' types
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from nereid.bounded_cache import BoundedCache
from nereid.pb import kserve_pb2
from nereid_adopt.calls.traffic import SequenceStep

_SEQUENCE: Final = b"sequence_id"
_REGION: Final = b"shared_memory_region"
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
_SEARCHED_BYTES: Final = 4096
_MAX_DECODED_BYTES: Final = 256 << 20
# Tags of a ModelInferRequest's model, version, id and parameters.
_LEADING_TAGS: Final = b"\x0a\x12\x1a\x22"
# Equal names are one object, which pickle writes once for all copies of a batch.
_MODELS: Final[BoundedCache[bytes, str]] = BoundedCache(1000)


class RegionRange(NamedTuple):
    """Range of a registered region that holds a tensor."""

    region: str
    offset: int
    byte_size: int


class RequestFacts(NamedTuple):
    """Facts that the proxy needs of a request. Ranges are by names of tensors."""

    step: SequenceStep | None = None
    input_ranges: Mapping[str, RegionRange] = {}
    output_ranges: Mapping[str, RegionRange] = {}


NO_FACTS: Final = RequestFacts()


def decoded(body: bytes, encoding: str) -> bytes | None:
    """Return a body without its content coding, or `None` if it cannot be decoded."""
    if encoding in {"", "identity"}:
        return body
    inflater = zlib.decompressobj(wbits=_GZIP_OR_ZLIB)
    try:
        content = inflater.decompress(body, _MAX_DECODED_BYTES)
    except zlib.error:
        return None
    return content if inflater.eof else None


def http_facts(model: str, body: bytes, json_bytes: int) -> RequestFacts:
    """Return the facts of an HTTP request; none of one whose JSON is damaged."""
    text = body[: json_bytes or len(body)]
    if _has_no_facts(text):
        return NO_FACTS
    try:
        document = json.loads(text)
        parameters = document.get("parameters") or {}
        # A generate request has the parameters beside its inputs.
        sequence_id = parameters.get("sequence_id", document.get("sequence_id", 0))
        step = _step(model, sequence_id, {**document, **parameters})
        inputs, outputs = (
            {
                tensor["name"]: found
                for tensor in document.get(kind) or ()
                if (found := _region_range(tensor.get("parameters") or {})) is not None
            }
            for kind in ("inputs", "outputs")
        )
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return NO_FACTS
    return RequestFacts(step, inputs, outputs)


def grpc_facts(message: bytes) -> tuple[str, RequestFacts]:
    """Return the model and the facts of a gRPC request; none of one that is damaged."""
    if len(message) <= _SEARCHED_BYTES and _has_no_facts(message):
        return model_of(message), NO_FACTS
    # Parsing a large message takes a tenth of the time of a search for the words.
    try:
        request = kserve_pb2.ModelInferRequest.FromString(message)
    except DecodeError:
        return "", NO_FACTS
    inputs, outputs = (
        {
            tensor.name: found
            for tensor in tensors
            if tensor.parameters
            and (found := _region_range(parameters_of(tensor.parameters))) is not None
        }
        for tensors in (request.inputs, request.outputs)
    )
    if not (request.parameters or inputs or outputs):
        return request.model_name, NO_FACTS
    parameters = parameters_of(request.parameters)
    step = _step(request.model_name, parameters.get("sequence_id", 0), parameters)
    return request.model_name, RequestFacts(step, inputs, outputs)


def grpc_leading_facts(content: bytes) -> tuple[str, RequestFacts]:
    """Return the model and the facts that the begin of a gRPC request has.

    All known clients send the parameters before the tensors.
    """
    at = end = 0
    while at < len(content):
        # Each field before the tensors is a length and as many bytes.
        is_before_tensors = content[at] in _LEADING_TAGS
        size = shift = 0
        at += 1
        while is_before_tensors and at < len(content):
            size |= (content[at] & 0x7F) << shift
            shift += 7
            at += 1
            if content[at - 1] < 0x80:
                break
        at += size
        if not is_before_tensors or at > len(content):
            break
        end = at
    return grpc_facts(content[:end])


def model_of(message: bytes) -> str:
    """Return the model of a ModelInferRequest, whose first field it is for all known clients."""
    if message[:1] == b"\n" and len(message) > 1 and message[1] < 0x80:
        name = message[2 : 2 + message[1]]
        return _MODELS.get(name) or _MODELS.remember(name, name.decode("utf-8", "replace"))
    try:
        return kserve_pb2.ModelInferRequest.FromString(message).model_name
    except DecodeError:
        return ""


def parameters_of(parameters: Mapping[str, kserve_pb2.InferParameter]) -> dict[str, Any]:
    """Return gRPC's parameters as values."""
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "int64_param")
        for name, value in parameters.items()
    }


def _has_no_facts(text: bytes) -> bool:
    # With bytes, Python's `in` makes and drops a TypeError first.
    return text.find(_SEQUENCE) < 0 and text.find(_REGION) < 0


def _region_range(parameters: Mapping[str, Any]) -> RegionRange | None:
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    offset = int(parameters.get("shared_memory_offset", 0))
    return RegionRange(str(region), offset, int(parameters.get("shared_memory_byte_size", 0)))


def _step(model: str, sequence_id: object, parameters: Mapping[str, Any]) -> SequenceStep | None:
    if not sequence_id:
        return None
    start, end = (bool(parameters.get(f"sequence_{name}", False)) for name in ("start", "end"))
    return SequenceStep(model, str(sequence_id), start, end)
