"""Ways in which most attacks reach a mesh: one HTTP request, one gRPC call, raw frames."""

from __future__ import annotations

from collections.abc import Callable

from nereid.core.wire.varint import encode_varint
from nereid.pb import kserve_pb2
from tests.support.hostile.attack import Client, Prepared, Target
from tests.support.hostile.raw_clients import FrameWriter, GrpcClient, HttpClient, post

INFER = "/v2/models/identity_fp32/infer"
UNKNOWN = "/v2/models/no_such_model/infer"
SERVICE = "/inference.GRPCInferenceService/"
_LIMIT_S = 60.0

Make = Callable[[], bytes]


def http_body(make: Make, path: str = INFER, *lines: str) -> Client:
    """One request with this body."""
    return Prepared(lambda: post(path, make(), *lines), ask)


def ask(target: Target, request: bytes) -> str:
    """Return the outcome of one HTTP request."""
    connection = HttpClient(target.http, target.source)
    try:
        return connection.pump(request, until=lambda: False, limit_s=_LIMIT_S).outcome
    finally:
        connection.close()


def grpc_body(
    make: Make, method: str = "ModelInfer", *fields: tuple[str, str], compressed: int = 0
) -> Client:
    """One call with this message."""

    def send(target: Target, body: bytes) -> str:
        connection = GrpcClient(target.grpc, target.source)
        try:
            return connection.call(
                1, SERVICE + method, body, *fields, compressed=compressed, limit_s=_LIMIT_S
            )
        finally:
            connection.close()

    return Prepared(make, send)


def grpc_frames(make: Callable[[FrameWriter], bytes], limit_s: float = 1) -> Client:
    """Frames on a greeted connection; waits until the server ends it, or for limit_s in all."""

    def send(target: Target, frames: bytes) -> str:
        connection = GrpcClient(target.grpc, target.source)
        try:
            return connection.pump(frames, until=lambda: False, limit_s=limit_s).outcome
        finally:
            connection.close()

    return Prepared(lambda: make(FrameWriter()), send)


def tagged(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protobuf message."""
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def infer_message(
    model: str = "identity_fp32",
    datatype: str = "FP32",
    shape: tuple[int, ...] = (1, 8),
    *,
    name: str = "INPUT0",
    contents: bytes | None = None,
    raw: bytes | None = None,
) -> bytes:
    """A ModelInferRequest; contents: of InferTensorContents, serialised."""
    tensor = kserve_pb2.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=shape
    ).SerializeToString()
    if contents is not None:
        tensor += tagged(5, contents)
    message = kserve_pb2.ModelInferRequest(model_name=model).SerializeToString()
    message += tagged(5, tensor)
    return message if raw is None else message + tagged(7, raw)
