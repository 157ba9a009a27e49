"""ModelInfer's bytes to requests and responses to bytes, with Triton's errors."""

from __future__ import annotations

import mmap
import struct
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.errors import Internal, Unimplemented
from nereid.core.tensors.datatypes import NAMES
from nereid.core.wire.messages import ErrorStatus, InferRequest, InferResponse
from nereid.pb import kserve_pb2
from nereid.shm.reference import SharedMemory
from nereid_gateway.core.tensors.region_ranges import RegionRange
from nereid_gateway.core.tensors.tensor_memory import TensorMemory, tensor_bytes
from nereid_gateway.fronts.grpc import wire_format
from nereid_gateway.fronts.grpc.infer_codec import (
    GrpcDecoder,
    GrpcMessage,
    checked_size,
    decode_job,
    encode,
)
from tests.support.forms import attributes
from tests.support.gateway.decoder_jobs import run_here
from tests.support.gateway.decoding import decode_grpc

P = kserve_pb2.InferParameter
C = kserve_pb2.InferTensorContents
FLOATS = struct.pack("<4f", 1, 2, 3, 4)
X: dict[str, Any] = {"name": "X", "datatype": "FP32", "shape": [4]}
Y: dict[str, Any] = {**X, "name": "Y"}
TYPED = {"contents": C(fp32_contents=[1, 2, 3, 4])}


def message(
    *inputs: dict[str, Any], raw: tuple[bytes, ...] = (), **fields: Any
) -> kserve_pb2.ModelInferRequest:
    built = kserve_pb2.ModelInferRequest(
        model_name="m", model_version="1", raw_input_contents=raw, **fields
    )
    for each in inputs:
        built.inputs.add(**each)
    return built


def decode(built: kserve_pb2.ModelInferRequest) -> InferRequest:
    return decode_grpc(GrpcDecoder(), built.SerializeToString())


def error_code_of(built: kserve_pb2.ModelInferRequest) -> int:
    request = decode(built)
    assert request.error_status is not None
    head = kserve_pb2.ModelInferRequest.FromString(request.head)
    assert head == kserve_pb2.ModelInferRequest(model_name="m", model_version="1")
    return request.error_status.code


def test_raw_tensors_travel_beside_the_head() -> None:
    decoder = GrpcDecoder()
    heads = set()
    for request_id in ("", "a", "b"):
        built = message(X, Y, raw=(FLOATS, FLOATS[::-1]), id=request_id, parameters={})
        request = decode_grpc(decoder, built.SerializeToString())
        assert request.error_status is None
        assert request.request_id == request_id
        assert request.payloads == [FLOATS, FLOATS[::-1]]
        heads.add(request.head)
    (head,) = heads
    assert kserve_pb2.ModelInferRequest.FromString(head) == message(X, Y)


def test_typed_and_raw_requests_have_the_same_head() -> None:
    typed = decode(message({**X, **TYPED}))
    raw = decode(message(X, raw=(FLOATS,)))
    assert typed.head == raw.head
    assert typed.payloads == raw.payloads == [FLOATS]


def test_parameters_go_where_they_belong() -> None:
    request = decode(
        message(
            X,
            raw=(FLOATS,),
            parameters={
                "priority": P(uint64_param=3),
                "timeout": P(int64_param=5),
                "k": P(double_param=1.5),
                "sequence_id": P(string_param="s"),
                "triton_enable_empty_final_response": P(bool_param=True),
            },
        )
    )
    assert request.error_status is None
    assert (request.priority, request.timeout_us) == (3, 5)
    assert request.parameters == {"k": 1.5, "sequence_id": "s"}


def test_negative_ids_and_timeouts_are_read_as_unsigned() -> None:
    parameters = {"timeout": P(int64_param=-1), "sequence_id": P(int64_param=-2)}
    request = decode(message(X, raw=(FLOATS,), parameters=parameters))
    assert request.timeout_us == (1 << 64) - 1
    assert request.parameters == {"sequence_id": -2}


# The texts are recorded, in tests/conformance/expected.
@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("priority", P(int64_param=-1), 3),
        ("priority", P(string_param="a"), 3),
        ("timeout", P(uint64_param=1), 3),
        ("sequence_id", P(bool_param=True), 3),
        ("sequence_id", P(string_param="x" * 129), 12),
        ("sequence_end", P(string_param="1"), 3),
        ("triton_x", P(int64_param=1), 3),
        ("k", P(), 3),
    ],
)
def test_parameters_are_checked(key: str, value: kserve_pb2.InferParameter, code: int) -> None:
    assert error_code_of(message(X, raw=(FLOATS,), parameters={key: value})) == code


@pytest.mark.parametrize(
    "built",
    [
        message({**X, **TYPED}, Y, raw=(FLOATS,)),
        message(X, {**Y, **TYPED}, raw=(FLOATS,)),
        message(X, Y, raw=(FLOATS,)),
        message(X),
        message({**X, "contents": C(int_contents=[1])}),
        message({**X, "datatype": "BYTES", "contents": C(bytes_contents=[b"a"])}, id="q"),
    ],
)
def test_defects_become_errors(built: kserve_pb2.ModelInferRequest) -> None:
    assert error_code_of(built) == 3


def test_a_known_head_without_its_tensors_is_refused_as_well() -> None:
    decoder = GrpcDecoder()
    assert decode_grpc(decoder, message(X, raw=(FLOATS,)).SerializeToString()).error_status is None
    assert decode_grpc(decoder, message(X).SerializeToString()).error_status is not None


def test_surplus_tensors_are_dropped() -> None:
    assert decode(message(X, raw=(FLOATS, FLOATS))).payloads == [FLOATS]
    assert decode(message(raw=(FLOATS,))).payloads == []


def test_features_that_are_not_there_are_refused() -> None:
    region = {
        "shared_memory_region": P(string_param="r"),
        "shared_memory_byte_size": P(int64_param=4),
    }
    assert error_code_of(message({**X, "parameters": region})) == 12
    for parameters, code in (
        (region, 12),
        ({"classification": P(int64_param=-2)}, 3),
        ({"classification": P(string_param="2")}, 3),
    ):
        built = message(X, raw=(FLOATS,))
        output = built.outputs.add(name="O")
        for key, value in parameters.items():
            output.parameters[key].CopyFrom(value)
        assert error_code_of(built) == code


def test_what_only_http_heeds_is_dropped_from_the_head() -> None:
    built = message({**X, "parameters": {"binary_data_size": P(int64_param=16)}}, raw=(FLOATS,))
    built.outputs.add(name="O").parameters["binary_data"].bool_param = True
    head = kserve_pb2.ModelInferRequest.FromString(decode(built).head)
    assert [(each.name, len(each.parameters)) for each in head.outputs] == [("O", 0)]
    assert not head.inputs[0].parameters


@pytest.mark.parametrize(
    ("datatype", "field", "values", "raw"),
    [
        ("BOOL", "bool_contents", [True, False], b"\1\0"),
        ("UINT8", "uint_contents", [255, 257], b"\xff\1"),
        ("INT8", "int_contents", [-1, 129], b"\xff\x81"),
        ("INT64", "int64_contents", [-1], b"\xff" * 8),
        ("FP32", "fp32_contents", [1.0], b"\0\0\x80?"),
        ("BYTES", "bytes_contents", [b"a", b"\xff"], b"\1\0\0\0a\1\0\0\0\xff"),
        ("FP32", "fp32_contents", [], b""),
    ],
)
def test_typed_contents(datatype: str, field: str, values: list[Any], raw: bytes) -> None:
    contents = C(**{field: values})
    request = decode(
        message({"name": "X", "datatype": datatype, "shape": [len(values)], "contents": contents})
    )
    assert request.error_status is None
    assert request.payloads == [raw]


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(Internal):
        decode_grpc(GrpcDecoder(), b"\xff\xff\xff")


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "name": st.text(max_size=2),
                "datatype": st.sampled_from([*sorted(NAMES), "", "X"]),
                "shape": st.lists(st.integers(-2, 3), max_size=3),
            }
        ),
        max_size=3,
    ),
    st.lists(st.binary(max_size=12), max_size=3),
)
def test_any_request_is_taken_or_faulty(inputs: list[dict[str, Any]], raw: list[bytes]) -> None:
    request = decode(message(*inputs, raw=tuple(raw)))
    if request.error_status is None:
        assert len(request.payloads) == len(inputs)
    else:
        assert request.error_status.code == 3


@given(
    st.text(max_size=200), st.lists(st.integers(0, 300) | st.sampled_from([16383, 16384, 70000]))
)
def test_responses_are_responses(request_id: str, sizes: list[int]) -> None:
    head = kserve_pb2.ModelInferResponse(model_name="m", model_version="1")
    for index in range(len(sizes)):
        head.outputs.add(name=str(index), datatype="UINT8", shape=[sizes[index]])
    wire_response = InferResponse(1, head.SerializeToString(), [bytes(size) for size in sizes])
    response = kserve_pb2.ModelInferResponse.FromString(encode(wire_response, request_id))
    assert response.id == request_id
    assert [len(raw) for raw in response.raw_output_contents] == sizes
    response.ClearField("id")
    response.ClearField("raw_output_contents")
    assert response == head


def test_a_large_message_is_decoded_where_it_lies() -> None:
    memory = TensorMemory(8 << 20)
    memory.on_scheduler_domain(memory.domain)
    tensors = (bytes(range(256)) * 400, FLOATS * 40)
    wide = {**X, "shape": [25600]}
    built = message(wide, {**Y, "shape": [160]}, raw=tensors, id="mine").SerializeToString()
    buffer = memory.message_buffer(
        len(built), wire_format.first_tensor_offset(memoryview(built)[:200])
    )
    assert buffer is not None
    buffer.view[:] = built
    request = decode_grpc(GrpcDecoder(), buffer)
    assert request.request_id == "mine"
    assert request.head == decode_grpc(GrpcDecoder(), built).head
    assert [bytes(tensor_bytes(request, each)) for each in request.payloads] == list(tensors)
    assert isinstance(request.payloads[0], SharedMemory)
    assert request.payloads[0].offset % 64 == 0


@pytest.mark.parametrize("noise", [b"\xff" * 100_000, b"\x3a\xff\xff\x7f" * 30_000])
def test_a_damaged_large_message_is_refused_as_a_small_one(noise: bytes) -> None:
    memory = TensorMemory(8 << 20)
    memory.on_scheduler_domain(memory.domain)
    buffer = memory.message_buffer(len(noise))
    assert buffer is not None
    buffer.view[:] = noise
    with pytest.raises(Internal):
        decode_grpc(GrpcDecoder(), buffer)


def typed(values: Any, **fields: Any) -> dict[str, Any]:
    return {"name": "X", "shape": [2], **fields, "contents": C(**values)}


@pytest.mark.parametrize(
    ("inputs", "raw"),
    [
        ((typed({"fp32_contents": [1, 2]}, datatype="FP32"),), ()),
        ((typed({"bytes_contents": [b"a", b""]}, datatype="BYTES"),), ()),
        ((typed({"bytes_contents": [b"a"]}, datatype="BYTES"),), ()),
        ((typed({"int_contents": [1, 300]}, datatype="INT8"),), ()),
        (({"name": "X", "datatype": "FP32", "shape": [2]},), (bytes(8),)),
        (({"name": "X", "datatype": "FP32", "shape": [2]},), ()),
    ],
)
async def test_a_decoder_process_reads_what_the_loop_reads(
    inputs: tuple[dict[str, Any], ...], raw: tuple[bytes, ...]
) -> None:
    data = message(*inputs, raw=raw).SerializeToString()
    here = decode_grpc(GrpcDecoder(), data)
    (there, checked), payloads = await run_here(decode_job, False, blobs=[data])
    there.payloads = payloads
    assert attributes(there) == attributes(here)
    assert (checked.regions, checked.strings) == (None, ())


async def test_a_decoder_process_leaves_regions_to_its_gateway() -> None:
    request = message({"name": "X", "datatype": "BYTES", "shape": [2]})
    parameters = request.inputs[0].parameters
    parameters["shared_memory_region"].string_param = "region"
    parameters["shared_memory_byte_size"].int64_param = 8
    data = request.SerializeToString()
    (there, checked), payloads = await run_here(decode_job, True, blobs=[data])
    assert there.error_status is None
    assert (payloads, [each.name for each in checked.strings]) == ([b""], ["X"])
    assert checked.regions.inputs == ((0, RegionRange("region", 0, 8)),)
    (refused, _), _ = await run_here(decode_job, False, blobs=[data])
    assert refused.error_status.code == Unimplemented.code


MANY = message(*[{"name": "X"}] * 1025)
DEEP = message({"name": "X", "datatype": "FP32", "shape": [1] * 1025}, raw=(b"",))
LARGE = message({"name": "X", "datatype": "BYTES", "shape": [(1 << 63) - 1] * 900}, raw=(b"",))


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (MANY, "a request for model 'm' has more than 1024 inputs"),
        (DEEP, "input 'X' for model 'm' has 1025 dimensions, more than 1024"),
    ],
    ids=["inputs", "dimensions"],
)
def test_what_no_model_has_is_refused_in_bounded_time(
    request_: kserve_pb2.ModelInferRequest, text: str
) -> None:
    request = decode(request_)
    assert request.error_status is not None
    assert request.error_status.message.startswith(text)


def test_strings_that_64_bits_do_not_count_are_left_to_the_scheduler() -> None:
    request, checked = GrpcMessage(GrpcDecoder(), LARGE.SerializeToString()).decode()
    assert (request.error_status, checked.strings) == (None, ())


def test_a_response_too_large_for_grpc_becomes_an_error() -> None:
    head = kserve_pb2.ModelInferResponse(model_name="m").SerializeToString()
    # The pages of an anonymous mapping take no memory until they are used.
    with closing(mmap.mmap(-1, 1 << 30)) as half, closing(mmap.mmap(-1, (1 << 30) - 20)) as rest:
        payloads: list[Any] = [half, rest]
        response = InferResponse(7, head, payloads, segment_name="s", more=True)
        assert checked_size(response, "") is response
        assert checked_size(InferResponse(7, head, [b"x"]), "id").error is None
        refused = checked_size(response, "123")
    assert (refused.id, refused.more, refused.payloads) == (7, True, [])
    assert refused.error == ErrorStatus(
        3, f"Response has byte size {1 << 31} which exceeds gRPC's byte size limit 2147483647."
    )
