"""ModelInferRequest bytes: a request or why not, and the same again where its head is known."""

from __future__ import annotations

from nereid.core.errors import Internal
from nereid.core.wire.codecs import RequestCodec
from nereid.core.wire.messages import InferRequest, InferResponse
from nereid.pb import kserve_pb2
from nereid_gateway.fronts.grpc.infer_codec import GrpcDecoder, encode
from tests.fuzz.shown import shown
from tests.support.gateway.decoding import decode_grpc

MAX_BYTES = 4096


def _seed(datatype: str, shape: list[int], raw: bytes | None, **contents: list[object]) -> bytes:
    message = kserve_pb2.ModelInferRequest(model_name="m", model_version="1", id="a")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    if raw is not None:
        message.raw_input_contents.append(raw)
    output = message.outputs.add(name="y")
    if datatype == "FP32":
        output.parameters["classification"].int64_param = 3
        message.parameters["priority"].uint64_param = 1
        message.parameters["sequence_id"].string_param = "s"
        message.parameters["mine"].double_param = 1.5
    if datatype == "INT8":
        tensor.parameters["shared_memory_region"].string_param = "r"
        tensor.parameters["shared_memory_byte_size"].int64_param = 8
    return message.SerializeToString()


SEEDS = [
    _seed("FP32", [1, 2], bytes(8)),
    _seed("FP32", [2], None, fp32_contents=[1.0, 2.0]),
    _seed("BYTES", [1], b"\x02\0\0\0ab"),
    _seed("BYTES", [2], None, bytes_contents=[b"a", b""]),
    _seed("INT16", [2], None, int_contents=[1, 70000]),
    _seed("UINT64", [1], None, uint64_contents=[1 << 63]),
    _seed("BOOL", [-1], None, bool_contents=[True]),
    _seed("INT8", [8], None),
]
WORDS = [b"FP32", b"BYTES", b"timeout", b"sequence_start", b"triton_x", b"\x32\x04", b"\x2a\x10"]
_codec = RequestCodec(lambda: 0.0)


def run(data: bytes) -> None:
    decoder = GrpcDecoder()
    try:
        request = decode_grpc(decoder, data)
    except Internal:
        return
    frame = _codec.encode([request])
    assert shown(decode_grpc(decoder, data)) == shown(request)
    [read] = _codec.decode(frame)
    assert isinstance(read, InferRequest)
    assert shown(read) == shown(request)
    head = kserve_pb2.ModelInferRequest.FromString(request.head)
    assert not head.raw_input_contents
    assert not head.id
    if request.error_status is None:
        assert len(head.inputs) == len(request.payloads)
        payloads = [bytes(payload) for payload in request.payloads]  # type: ignore[arg-type]
        response = InferResponse(
            1, kserve_pb2.ModelInferResponse().SerializeToString(), list(payloads)
        )
        encoded = kserve_pb2.ModelInferResponse.FromString(encode(response, request.request_id))
        assert list(encoded.raw_output_contents) == payloads
        assert encoded.id == request.request_id
    else:
        assert 0 < request.error_status.code < 17
