"""What services tell each other: frames that cannot be read are refused, and those that can be are
written again as they were; a batch is answered member by member whatever its members hold.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from nereid.backends import ModelDescription
from nereid.core.errors import NereidError
from nereid.core.wire.cache_messages import CacheReplyCodec, CacheRequestCodec
from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.messages import CachedModels, Cancel, ErrorStatus, InferRequest, InferResponse
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory
from nereid_executor.batch.arrays import gather_members, split_outputs, stack_inputs
from nereid_executor.batch.batch_reader import BatchRequest, parse_batch, read_batch
from nereid_executor.batch.mixed_shapes import MixedShapes
from nereid_executor.batch.request_plan import Planner, signature_of
from tests.support.models.onnx_models import config, head, member

MAX_BYTES = 4096
_CONFIG = """max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: -1 }, { name: "s" data_type: TYPE_STRING dims: 1 }]
output [{ name: "y" data_type: TYPE_FP32 dims: -1 }, { name: "t" data_type: TYPE_STRING dims: 1 }]
"""
_SIGNATURE = signature_of(config(_CONFIG), 1, ModelDescription((), ()), bytes_as_text=True)
_MIXED_CONFIG = config(
    """max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }]
input [{ name: "s" data_type: TYPE_INT8 dims: -1 }]
batch_input { target_name: "n" source_input: "x" data_type: TYPE_INT32 kind: BATCH_ITEM_SHAPE }
output [{ name: "y" data_type: TYPE_FP32 dims: -1 }, { name: "t" data_type: TYPE_INT8 dims: -1 }]
batch_output { target_name: "y" source_input: "x" }
parameters { key: "padding" value { string_value: "s[0]=3 -> t[0]: 2 4" } }
"""
)
_MIXED_SIGNATURE = signature_of(_MIXED_CONFIG, 1, ModelDescription((), ()), bytes_as_text=True)
_MIXED = MixedShapes(_MIXED_CONFIG, _MIXED_SIGNATURE, {})
_CODECS: list[Any] = [
    RequestCodec(lambda: 0.0),
    ResponseCodec(),
    CacheRequestCodec(),
    CacheReplyCodec(),
]


def _batch(*members: pb.BatchMember) -> bytes:
    return pb.Batch(id=1, members=members).SerializeToString()


_HEAD = head(("x", "FP32", [1, 2]), ("s", "BYTES", [1, 1]))
_REQUEST = InferRequest(
    7, _HEAD, [bytes(8), SharedMemory("slab", 1, 2)], "id", {"a": 1, "b": "c", "d": 1.5, "e": True}
)
_DEFERRED = InferRequest(
    8, _HEAD, [], error_status=ErrorStatus(3, "no"), timeout_us=5, deadline=2.5, digest=b"d"
)
_MIXED_HEADS = [head(("x", "FP32", [1, n]), ("s", "INT8", [1, n])) for n in (1, 2)]
# The first byte says who reads the rest: one of the codecs, or an executor (odd: of a model whose
# requests differ in shape).
SEEDS = [
    b"\0" + RequestCodec(lambda: 0.0).encode([_REQUEST, _DEFERRED, Cancel(7)]),
    b"\1"
    + ResponseCodec().encode(
        [
            InferResponse(7, b"head", [b"abc"]),
            InferResponse(8, error=ErrorStatus(5, "x", True)),
            CachedModels(("m",)),
        ]
    ),
    b"\4" + _batch(member(_HEAD, bytes(8), b"\x01\0\0\0a")),
    b"\4"
    + _batch(
        member(_HEAD, bytes(8), b"\x01\0\0\0a"),
        member(_HEAD, bytes(7), b"\x01\0\0\0b"),
        member(head(("x", "FP32", [2, 2]), ("s", "BYTES", [2, 1])), bytes(16), b"\0\0\0\0" * 2),
    ),
    b"\4" + _batch(member(b"\xff", b"")),
    b"\5"
    + _batch(*(member(each, bytes(4 * n), bytes(n)) for n, each in enumerate(_MIXED_HEADS, 1))),
]
WORDS = [_HEAD, b"\x0a\x0c", b"\x12\x08", b"\x01\0\0\0a", b"FP32", b"BYTES"]


def _fields(request: BatchRequest) -> tuple[object, ...]:
    return (
        *(request.id, request.head, request.tensors, request.request_id, request.trace_context),
        *(request.remaining_us, request.timeout_us, request.parameters),
    )


def _response(data: bytes, *, mixed: bool) -> None:
    batch = read_batch(data)
    parsed = parse_batch(data)
    assert batch.id == parsed.id
    assert [*map(_fields, batch.requests)] == [*map(_fields, parsed.requests)]
    signature = _MIXED_SIGNATURE if mixed else _SIGNATURE
    stack, split = (
        (_MIXED.stack_inputs, _MIXED.split_outputs) if mixed else (stack_inputs, split_outputs)
    )
    planner = Planner(signature)
    try:
        gathered = gather_members(planner, batch.requests)
        inputs = {} if gathered.first is None else stack(signature, gathered)
    except NereidError:
        return
    arrays = []
    if gathered.first is not None:
        if not {"x", "s"} <= inputs.keys():
            # The scheduler refuses such heads; a model says so itself.
            return
        by_name = {"y": inputs["x"], "t": inputs["s"]}
        arrays = [by_name[name] for name in gathered.names]
    executed = pb.Executed.FromString(b"".join(split(signature, gathered, arrays)))
    assert len(executed.responses) == len(batch.requests)
    for response, outcome in zip(executed.responses, gathered.outcomes, strict=True):
        assert response.HasField("error") == isinstance(outcome, ErrorStatus)


def run(data: bytes) -> None:
    if not data:
        return
    reader, data = data[0], data[1:]
    try:
        if reader >= len(_CODECS):
            _response(data, mixed=bool(reader & 1))
            return
        codec = _CODECS[reader]
        codec.decode(data)
    except DecodeError:
        return
