"""gRPC messages that are dear to read."""

from __future__ import annotations

from nereid.core.wire.varint import encode_varint
from nereid.pb import kserve_pb2
from tests.support.hostile.attack import ENDED, SERVED, Attack
from tests.support.hostile.sending import grpc_body, infer_message, tagged

_MIB = 1 << 20
_HUGE = ((1 << 63) - 1,) * 40_000


def _many(count: int, what: str) -> bytes:
    message = kserve_pb2.ModelInferRequest(model_name="identity_fp32")
    for number in range(count):
        if what == "inputs":
            message.inputs.add(name="INPUT0", datatype="FP32", shape=[0])
        elif what == "outputs":
            message.outputs.add(name=f"o{number}")
        else:
            message.parameters[f"k{number}"].int64_param = number
    return message.SerializeToString()


def _packed(number: int, element: bytes, count: int) -> bytes:
    return tagged(number, element * count)


ATTACKS = (
    Attack(
        "gRPC 360 kB of huge dimensions", grpc_body(lambda: infer_message(shape=_HUGE, raw=b""))
    ),
    Attack(
        "gRPC huge dimensions, typed",
        grpc_body(lambda: infer_message(shape=_HUGE, contents=_packed(6, bytes(4), 1))),
        nightly=True,
    ),
    Attack(
        "gRPC huge dimensions, strings",
        grpc_body(lambda: infer_message(datatype="BYTES", shape=_HUGE, raw=bytes(4))),
    ),
    Attack(
        "gRPC huge dimensions on a stream",
        grpc_body(lambda: infer_message(shape=_HUGE, raw=b""), "ModelStreamInfer"),
        ENDED,
        nightly=True,
    ),
    Attack(
        "gRPC 32 MB of empty strings to an unknown model",
        grpc_body(
            lambda: infer_message("nobody", "BYTES", (1, 8 * _MIB), raw=bytes(32 * _MIB)),
        ),
    ),
    Attack(
        "gRPC 32 MB of empty strings to a model of numbers",
        grpc_body(
            lambda: infer_message(datatype="BYTES", shape=(1, 8 * _MIB), raw=bytes(32 * _MIB))
        ),
        nightly=True,
    ),
    Attack(
        "gRPC 8 million empty typed strings to an unknown model",
        grpc_body(
            lambda: infer_message("nobody", "BYTES", (1, 8 * _MIB), contents=b"\x42\0" * 8 * _MIB)
        ),
    ),
    Attack(
        "gRPC 16 million packed integers to an unknown model",
        grpc_body(
            lambda: infer_message(
                "nobody", "INT32", (1, 16 * _MIB), contents=_packed(2, b"\1", 16 * _MIB)
            )
        ),
        nightly=True,
    ),
    Attack(
        "gRPC 8 million loose integers to an unknown model",
        grpc_body(
            lambda: infer_message("nobody", "INT32", (1, 8 * _MIB), contents=b"\x10\1" * 8 * _MIB)
        ),
        nightly=True,
    ),
    Attack(
        "gRPC 16 million packed booleans to an unknown model",
        grpc_body(
            lambda: infer_message(
                "nobody", "BOOL", (1, 16 * _MIB), contents=_packed(1, b"\1", 16 * _MIB)
            )
        ),
        nightly=True,
    ),
    Attack(
        "gRPC 4 million typed floats",
        grpc_body(
            lambda: infer_message(shape=(1, 4 * _MIB), contents=_packed(6, bytes(4), 4 * _MIB))
        ),
        SERVED,
        more_mib=300,
        nightly=True,
    ),
    Attack("gRPC 100,000 inputs", grpc_body(lambda: _many(100_000, "inputs")), nightly=True),
    Attack("gRPC 100,000 outputs", grpc_body(lambda: _many(100_000, "outputs"))),
    Attack(
        "gRPC 100,000 parameters", grpc_body(lambda: _many(100_000, "parameters")), nightly=True
    ),
    Attack(
        "gRPC 4 million empty raw contents",
        grpc_body(lambda: infer_message() + b"\x3a\0" * (4 * _MIB)),
    ),
    Attack(
        "gRPC 8 MB of unknown fields",
        grpc_body(lambda: infer_message() + b"\xf8\x3f\1" * (8 * _MIB // 3)),
    ),
    Attack(
        "gRPC deep unknown groups",
        grpc_body(lambda: infer_message() + b"\xfb\x3f" * (2 * _MIB)),
        nightly=True,
    ),
    Attack("gRPC 4 MB of no message", grpc_body(lambda: b"\xff" * (4 * _MIB)), nightly=True),
    Attack(
        "gRPC a length without content",
        grpc_body(lambda: b"\x3a" + encode_varint((1 << 31) - 1) + b"x"),
        nightly=True,
    ),
    Attack(
        "gRPC statistics of an 8 MB name",
        grpc_body(lambda: tagged(1, b"x" * (8 * _MIB)), "ModelStatistics"),
        nightly=True,
    ),
)
