"""HTTP infer bodies: a request or an error status; a remembered header gives the same."""

from __future__ import annotations

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import NereidError
from nereid.core.wire.codecs import RequestCodec
from nereid.core.wire.messages import InferRequest
from nereid.pb import kserve_pb2
from nereid_gateway.fronts.http.inference.infer_request import InferRequestDecoder, header_length
from tests.fuzz.shown import shown
from tests.support.gateway.decoding import decode_http

MAX_BYTES = 4096
_X = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"%b",%b}]%b}'
_HEADERS = [
    _X % (b"FP32", b'"parameters":{"binary_data_size":8}', b""),
    _X % (b"FP32", b'"data":[1.5,-2e9]', b',"id":"a","outputs":[{"name":"y"}]'),
    _X % (b"BYTES", b'"data":["a","\\u00e9"]', b',"parameters":{"binary_data_output":true}'),
    _X % (b"BYTES", b'"parameters":{"binary_data_size":10}', b',"parameters":{"priority":3}'),
    _X % (b"INT64", b'"data":[[1,9223372036854775807]]', b',"parameters":{"sequence_id":"s"}'),
    _X % (b"FP16", b'"data":[1,NaN]', b',"parameters":{"timeout":100,"mine":"a","f":1.5}'),
    _X % (b"BOOL", b'"data":[true,0]', b',"outputs":[{"name":"y","parameters":{"binary_data":1}}]'),
    _X
    % (
        b"UINT8",
        b'"parameters":{"shared_memory_region":"r","shared_memory_byte_size":2}',
        b',"outputs":[{"name":"y","parameters":{"classification":3}}]',
    ),
    b'{"id":"one","inputs":[]}',
]
_TENSOR = b"\x01\0\0\0a\x01\0\0\0b"
# Two bytes: the header's length, or, as 65535, that there is no such line.
SEEDS = [len(text).to_bytes(2) + text + _TENSOR for text in _HEADERS]
SEEDS += [b"\xff\xff" + text for text in _HEADERS]
WORDS = [
    *(b'"inputs":', b'"outputs":', b'"parameters":', b'"name":', b'"shape":', b'"datatype":'),
    *(b'"data":', b'"id":', b'"binary_data_size":', b'"binary_data":true', b'"classification":'),
    *(b'"FP32"', b'"BYTES"', b'"INT8"', b'"BF16"', b"[", b"]", b"{", b"}", b",", b"null", b"1e999"),
    *(b'"sequence_id":', b'"priority":', b'"timeout":', b'"triton_x":', b"-1", b"\\ud800"),
]
_codec = RequestCodec(lambda: 0.0)


def run(data: bytes) -> None:
    if len(data) < 2:
        return
    header_size, body = int.from_bytes(data[:2]), data[2:]
    text = None if header_size == 0xFFFF else b"%d" % header_size
    try:
        length = header_length(text, len(body))
    except NereidError:
        return
    decoder = InferRequestDecoder("m", "1", BoundedCache(1024))
    request, form = decode_http(decoder, body, length)
    again, form_again = decode_http(decoder, body, length)
    assert form == form_again
    frame = _codec.encode([request])
    assert shown(again) == shown(request)
    [read] = _codec.decode(frame)
    assert isinstance(read, InferRequest)
    assert shown(read) == shown(request)
    head = kserve_pb2.ModelInferRequest.FromString(request.head)
    assert (head.model_name, head.model_version) == ("m", "1")
    if request.error_status is None:
        assert len(head.inputs) == len(request.payloads)
    else:
        assert 0 < request.error_status.code < 17
        assert request.error_status.message
