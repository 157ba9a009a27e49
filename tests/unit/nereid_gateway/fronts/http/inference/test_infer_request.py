"""Bodies of infer requests, accepted and refused as by Triton."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import InvalidArgument
from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.wire.messages import InferRequest
from nereid.pb import kserve_pb2
from nereid.shm.segments import SHM_THRESHOLD_BYTES
from nereid_gateway.core.tensors import string_elements
from nereid_gateway.core.tensors.tensor_memory import MessageBuffer, TensorMemory, tensor_bytes
from nereid_gateway.fronts.http.inference.infer_request import (
    InferRequestDecoder,
    ParsedHeader,
    ResponseForm,
    header_length,
)
from tests.support.forms import attributes
from tests.support.gateway.decoder_jobs import run_here
from tests.support.gateway.decoding import decode_http, decode_http_in_process

FLOATS = struct.pack("<4f", 1, 2, 3, 4)


def decoder() -> InferRequestDecoder:
    return InferRequestDecoder("m", "1", BoundedCache(1024))


def tensor(**fields: Any) -> dict[str, Any]:
    return {"name": "X", "shape": [4], "datatype": "FP32", **fields}


GOOD = tensor(data=[1, 2, 3, 4])


def decode(document: Any, raw: bytes = b"") -> tuple[InferRequest, ResponseForm]:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return decode_http(decoder(), text + raw, len(text))


def error_code_of(document: Any, raw: bytes = b"") -> int:
    request, _ = decode(document, raw)
    assert request.error_status is not None
    head = kserve_pb2.ModelInferRequest.FromString(request.head)
    assert head == kserve_pb2.ModelInferRequest(model_name="m", model_version="1")
    assert request.payloads == []
    return request.error_status.code


def test_json_data_becomes_raw() -> None:
    request, form = decode(
        {
            "id": "abc",
            "parameters": {"priority": 2, "timeout": 7, "a": 1, "b": "x", "c": True, "d": 1.5},
            "inputs": [GOOD, tensor(name="Y", datatype="BYTES", shape=[1, 1], data=[["é"]])],
            "outputs": [{"name": "O"}, {"name": "P"}],
        }
    )
    assert request.error_status is None
    assert request.request_id == "abc"
    assert (request.priority, request.timeout_us) == (2, 7)
    assert request.parameters == {"a": 1, "b": "x", "c": True, "d": 1.5}
    assert request.payloads == [FLOATS, b"\2\0\0\0\xc3\xa9"]
    head = kserve_pb2.ModelInferRequest.FromString(request.head)
    assert [(each.name, each.datatype, list(each.shape)) for each in head.inputs] == [
        ("X", "FP32", [4]),
        ("Y", "BYTES", [1, 1]),
    ]
    assert [each.name for each in head.outputs] == ["O", "P"]
    assert form == ResponseForm()


def test_binary_tensors_follow_the_header_in_order() -> None:
    inputs = [
        tensor(parameters={"binary_data_size": 16}),
        tensor(name="J", data=[0, 0, 0, 0]),
        tensor(name="S", datatype="BYTES", shape=[1], parameters={"binary_data_size": 5}),
    ]
    request, _ = decode({"inputs": inputs}, FLOATS + b"\1\0\0\0a")
    assert request.payloads == [FLOATS, bytes(16), b"\1\0\0\0a"]


def test_headers_are_remembered_whatever_their_id() -> None:
    table: BoundedCache[tuple[bytes, bytes], ParsedHeader] = BoundedCache(1024)
    reader = InferRequestDecoder("m", "1", table)
    rest = b'"inputs":[{"name":"X","shape":[4],"datatype":"FP32","parameters":'
    rest += b'{"binary_data_size":16}}],"parameters":{"k":1}}'
    for name in ("one", "two", "é"):
        text = b'{ "id" : "%b", ' % name.encode() + rest
        request, _ = decode_http(reader, text + FLOATS, len(text))
        assert request.request_id == name
        assert request.payloads == [FLOATS]
        assert request.parameters == {"k": 1}
        request.parameters["k"] = 2
    assert len(table) == 1
    # Another model's request with the same header is another request.
    text = b"{" + rest
    other, _ = decode_http(InferRequestDecoder("n", "", table), text + FLOATS, len(text))
    assert kserve_pb2.ModelInferRequest.FromString(other.head).model_name == "n"


def test_headers_are_remembered_without_their_data() -> None:
    table: BoundedCache[tuple[bytes, bytes], ParsedHeader] = BoundedCache(1024)
    reader = InferRequestDecoder("m", "1", table)
    for first in (1, 5, 7):
        text = json.dumps({"inputs": [tensor(data=[first, 2, 3, 4])]}).encode()
        request, _ = decode_http(reader, text, len(text))
        assert request.payloads == [struct.pack("<4f", first, 2, 3, 4)]
    (known,) = table.values()
    assert not known.inline
    # Strings may hold anything: what has some is remembered as little as before.
    text = json.dumps({"inputs": [tensor(datatype="BYTES", data=["a", "b", "c", "d"])]}).encode()
    decode_http(reader, text, len(text))
    assert len(table) == 1


_NUMBERS = st.one_of(
    st.integers(-300, 300), st.integers(-(2**70), 2**70), st.floats(allow_nan=False)
)
_LEAVES = st.one_of(_NUMBERS, st.booleans(), st.none(), st.sampled_from(["", "]", '"data":[1]']))
_DATA = st.one_of(
    st.lists(_NUMBERS, min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(_NUMBERS, max_size=5),
    st.recursive(_LEAVES, lambda some: st.lists(some, max_size=4), max_leaves=6),
    st.dictionaries(st.sampled_from(["data", "a"]), st.lists(_NUMBERS)),
)


@given(
    st.lists(
        st.tuples(_DATA, st.sampled_from(["FP32", "FP64", "INT8", "INT64", "UINT32", "BOOL"])),
        min_size=1,
        max_size=2,
    ),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")]),
    st.sampled_from(["data", "shape", "name"]),
)
def test_remembered_headers_are_read_as_others(
    tensors: list[tuple[Any, str]], separators: tuple[str, str], last: str
) -> None:
    def text_of(first: Any) -> bytes:
        inputs = []
        for index, (data, datatype) in enumerate(tensors):
            fields = tensor(name=f"X{index}", datatype=datatype, data=data if index else first)
            fields[last] = fields.pop(last)
            inputs.append(fields)
        text = json.dumps({"inputs": inputs, "id": "z"}, separators=separators)
        return text.encode()

    reader = decoder()
    # What makes the second one known, unless the other tensor is wrong.
    for good in ([1, 2, 3, 4], [True] * 4):
        text = text_of(good)
        decode_http(reader, text, len(text))
    text = text_of(tensors[0][0])
    known, fresh = decode_http(reader, text, len(text)), decode_http(decoder(), text, len(text))
    assert attributes(known[0]) == attributes(fresh[0])
    assert known[1] == fresh[1]


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs":[{"name":"X","shape":[4],"datatype":"FP32","data":[[1,2],[3,4]}]}',
        b'{"inputs":[{"name":"X","shape":[4],"datatype":"FP32","data":[1,2,3,4}]}',
        b'{"inputs":[{"name":"X","shape":[4],"datatype":"FP32","data":[1,2,3,4],[5]}]}',
        b'{"inputs":[{"name":"X","shape":[4],"datatype":"FP32","data":[1,,2,3,4]}]}',
        b'{"inputs":[{"name":"X","shape":[4],"datatype":"FP32","data":[1,2,3,NaN]}]}',
        b'{"inputs":[{"name":"X","shape":[4],"datatype":"FP32","data":[9],"data":[1,2,3,4]}]}',
        b'{"inputs":[{"name":"\\"data":[1]","shape":[4],"datatype":"FP32","data":[1,2,3,4]}]}',
        b'{"data":[1,2,3,4],"inputs":[{"name":"X","shape":[4],"datatype":"FP32"}]}',
        b'{"inputs":[{"name":"X","shape":[4],"datatype":"FP32","data":',
        b'{"inputs":[{"name":"X","shape":[4],"datatype":"FP32","data": ',
    ],
)
def test_what_is_not_quite_json_is_read_as_if_nothing_was_known(text: bytes) -> None:
    reader = decoder()
    good = b'{"inputs":[{"name":"X","shape":[4],"datatype":"FP32","data":[4,3,2,1]}]}'
    decode_http(reader, good, len(good))
    for _ in range(2):
        known, fresh = decode_http(reader, text, len(text)), decode_http(decoder(), text, len(text))
        assert attributes(known[0]) == attributes(fresh[0])


def test_the_form_of_outputs() -> None:
    def form(**members: Any) -> ResponseForm:
        request, wanted = decode({"inputs": [GOOD], **members})
        assert request.error_status is None
        return wanted

    binary = {"parameters": {"binary_data": True}}
    by_default = {"binary_data_output": True}
    assert form(parameters=by_default) == ResponseForm(True)
    assert form(outputs=[{"name": "O", **binary}]) == ResponseForm(False, (("O", True),))
    assert form(parameters=by_default, outputs=[{"name": "O"}]) == ResponseForm(False)
    assert form(parameters=by_default, outputs=[]) == ResponseForm(True)
    assert form(outputs=[{"name": "O", "parameters": 5}]) == ResponseForm()
    assert form(outputs=[{"name": "O", "parameters": {"classification": 0}}]) == ResponseForm()


# The texts are recorded, in tests/conformance/expected.
@pytest.mark.parametrize(
    ("document", "code"),
    [
        (b"{", 13),
        ({"inputs": 5}, 13),
        ({"inputs": [5]}, 3),
        ({"inputs": [tensor()]}, 3),
        ({"inputs": [tensor(data=[], parameters={"binary_data_size": 1})]}, 3),
        ({"inputs": [{"data": [1]}]}, 13),
        ({"inputs": [tensor(name=5, data=[1])]}, 13),
        ({"inputs": [{"name": "X", "data": [1]}]}, 13),
        ({"inputs": [{"name": "X", "datatype": "FP32", "data": [1]}]}, 13),
        ({"inputs": [tensor(shape=5, data=[1])]}, 13),
        ({"inputs": [tensor(shape=[-1], data=[1])]}, 13),
        ({"inputs": [tensor(shape=[1 << 62], data=[1])]}, 3),
        ({"inputs": [tensor(datatype="XX", data=[1])]}, 3),
        ({"inputs": [tensor(parameters={"shared_memory_region": "r"})]}, 12),
        ({"inputs": [tensor(parameters={"shared_memory_region": 5})]}, 13),
        ({"inputs": [tensor(parameters={"binary_data_size": -1})]}, 13),
        ({"inputs": [tensor(shape=[1 << 63], parameters={"binary_data_size": 0})]}, 3),
        ({"inputs": [tensor(parameters={"binary_data_size": 16})]}, 3),
        ({"id": 5, "parameters": 5, "inputs": 5}, 13),
        ({"parameters": 5, "inputs": 5}, 13),
        ({"inputs": [GOOD], "outputs": 5}, 13),
        ({"inputs": [GOOD], "outputs": [5]}, 13),
        ({"inputs": [tensor(datatype="BYTES", shape=[2], data=["a"])]}, 3),
    ],
)
def test_defects_become_errors(document: Any, code: int) -> None:
    assert error_code_of(document) == code


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"priority": -1}, 13),
        ({"timeout": "a"}, 13),
        ({"binary_data_output": 5}, 13),
        ({"sequence_id": 1.5}, 13),
        ({"sequence_id": "x" * 129}, 12),
        ({"sequence_start": 5}, 13),
        ({"triton_x": 1}, 3),
        ({"a": None}, 3),
    ],
)
def test_parameters_are_checked(parameters: dict[str, Any], code: int) -> None:
    assert error_code_of({"inputs": [GOOD], "parameters": parameters}) == code


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"binary_data": 5}, 13),
        ({"classification": -1}, 13),
        ({"shared_memory_region": "r"}, 12),
        ({"shared_memory_region": "r", "classification": 1}, 3),
        ({"shared_memory_region": "r", "binary_data": True}, 3),
    ],
)
def test_output_parameters_are_checked(parameters: dict[str, Any], code: int) -> None:
    outputs = [{"name": "O", "parameters": parameters}]
    assert error_code_of({"inputs": [GOOD], "outputs": outputs}) == code


def test_parameters_of_other_schedulers_are_accepted() -> None:
    given_parameters = {"sequence_id": "x", "sequence_start": True, "sequence_end": False}
    request, _ = decode({"inputs": [GOOD], "parameters": given_parameters})
    assert request.parameters == given_parameters
    request, _ = decode({"inputs": [GOOD], "parameters": {"sequence_id": 5}})
    assert request.parameters == {"sequence_id": 5}


def test_bytes_after_the_tensors_are_refused() -> None:
    sized = tensor(parameters={"binary_data_size": 16})
    assert error_code_of({"inputs": [sized]}, FLOATS + b"x") == 3
    assert error_code_of({"inputs": [sized]}, FLOATS[:12]) == 3


def test_an_error_keeps_the_request_id() -> None:
    request, _ = decode({"id": "q", "inputs": [tensor(datatype="BYTES", data=["a"])]})
    assert request.request_id == "q"
    assert request.error_status is not None
    assert request.error_status.message.startswith("[request id: q] expected 4 string elements")


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (None, 100),
        (b"5", 5),
        (b" 5", 5),
        (b"5x", 5),
        (b"0x10", 0),
    ],
)
def test_the_header_length_is_read_as_c_reads_numbers(text: bytes | None, length: int) -> None:
    assert header_length(text, 100) == length


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"-1", "should be in range (0, 100), got: -1"),
        (b" 101x", "should be in range (0, 100), got:  101x"),
        (b"", "Unable to parse Inference-Header-Content-Length, got: "),
        (b"x\xff", "Unable to parse Inference-Header-Content-Length, got: x\ufffd"),
        (b"-2147483649", "value is out of range [ -2147483648, 2147483647 ], got: -2147483649"),
    ],
)
def test_a_header_length_outside_the_body_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        header_length(text, 100)
    assert caught.value.message.endswith(reason)
    assert caught.value.accepted


def test_a_header_length_of_any_number_of_digits_is_refused() -> None:
    assert header_length(b"0" * 5000 + b"7", 100) == 7
    with pytest.raises(InvalidArgument):
        header_length(b"9" * 5000, 100)


def inputs(**members: object) -> bytes:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1], "data": [1], **members}
    return json.dumps({"inputs": [tensor]}).encode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (inputs(shape=[1] * 2000), "input 'X' for model 'm' has 2000 dimensions, more than 1024"),
        (inputs(shape=[(1 << 63) - 1] * 1000), "invalid shape for input 'X': shape [92233720368"),
        (inputs(datatype="BYTES", data=["a"], shape=[1 << 40] * 1000), "invalid shape for input"),
        (b'{"inputs":[' + b",".join([inputs()[12:-2]] * 1025) + b"]}", "a request for model 'm' "),
        (inputs(name="n" * 300_000), "the names and shapes of a request for model 'm' take"),
        (
            inputs()[:-1]
            + b',"parameters":'
            + json.dumps(dict.fromkeys(map(str, range(1025)), 1)).encode()
            + b"}",
            "a request for model 'm' has more than 1024 parameters",
        ),
        (
            inputs()[:-1] + b',"outputs":[' + b",".join([b'{"name":"Y"}'] * 1025) + b"]}",
            "a request for model 'm' has more than 1024 outputs",
        ),
    ],
)
def test_what_no_model_has_is_refused_in_bounded_time(text: bytes, reason: str) -> None:
    request, _ = decode_http(decoder(), text, len(text))
    assert request.error_status is not None
    assert request.error_status.message.startswith(reason)


@pytest.mark.parametrize(
    "text",
    [
        inputs(),
        b'{"id":"a","inputs":[]}',
        b'{"inputs":[],"id":"a"}',
        inputs(datatype="BYTES", data=["a", "b"], shape=[2]),
        inputs(datatype="BYTES", data=["a", "b"], shape=[3]),
        inputs(parameters={"binary_data_size": 8}),
        inputs()[:-1] + b',"outputs":[{"name":"Y","parameters":{"binary_data":true}}]}',
        b'{"inputs":',
        b'{"inputs":[{"name":"X","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]}',
        b'{"inputs":[{"name":"X","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":8}}]}',
        (
            b'{"id":"i","inputs":[{"name":"X","datatype":"BYTES","shape":[3],'
            b'"parameters":{"binary_data_size":8}}],"parameters":{"priority":3,"timeout":4,"x":"y"}}'
        ),
    ],
)
async def test_a_decoder_process_reads_what_the_loop_reads(text: bytes) -> None:
    body = text + bytes(8) if b"binary_data_size" in text else text
    here, form = decode_http(decoder(), body, len(text))
    there, same_form = await decode_http_in_process(decoder(), body, len(text))
    assert attributes(there) == attributes(here)
    assert same_form == form


async def test_large_strings_are_left_to_be_counted() -> None:
    raw = join_bytes([b""] * 10_000)
    text = (
        b'{"inputs":[{"name":"X","datatype":"BYTES","shape":[10001],"parameters":'
        b'{"binary_data_size":%d}}]}' % len(raw)
    )
    request, header = decoder().decode(text + raw, len(text))
    assert request.error_status is None
    strings = header.checked.strings
    assert [each.name for each in strings] == ["X"]
    with pytest.raises(InvalidArgument, match=r"expected 10001 string elements .*, got 10000$"):
        await string_elements.check_large(request, strings, run_here)


@given(st.data())
def test_any_shape_of_any_numbers_arrives(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 3), max_size=3))
    values = np.arange(int(np.prod(shape))).reshape(shape)
    nested = values.tolist() if shape else [int(values)]
    request, _ = decode({"inputs": [tensor(shape=shape, datatype="INT16", data=nested)]})
    assert request.error_status is None
    assert request.payloads == [values.astype("<i2").tobytes()]


def buffer_of(memory: TensorMemory, data: bytes) -> MessageBuffer:
    memory.on_scheduler_domain(memory.domain)
    buffer = memory.message_buffer(len(data))
    assert buffer is not None
    buffer.view[:] = data
    return buffer


async def test_json_in_a_buffer_gives_the_buffer_back() -> None:
    memory = TensorMemory(64 << 20)
    count = SHM_THRESHOLD_BYTES
    text = inputs(datatype="UINT8", shape=[count], data=[7] * count)
    buffer = buffer_of(memory, text)
    name = buffer.lease.segment.name
    request, _ = await decode_http_in_process(decoder(), buffer, len(text))
    assert (request.payloads, request.lease) == ([b"\7" * count], None)
    again = memory.message_buffer(len(text))
    assert again is not None
    assert again.lease.segment.name == name


async def test_tensors_behind_a_large_header_are_left_in_their_buffer() -> None:
    memory = TensorMemory(64 << 20)
    size = SHM_THRESHOLD_BYTES
    binary = tensor(parameters={"binary_data_size": size}, datatype="UINT8", shape=[size])
    text = json.dumps({"inputs": [binary], "parameters": {"note": "n" * size}}).encode()
    buffer = buffer_of(memory, text + b"\7" * size)
    request, _ = await decode_http_in_process(decoder(), buffer, len(text))
    assert request.lease is buffer.lease
    assert tensor_bytes(request, request.payloads[0]) == b"\7" * size
    assert request.parameters == {"note": "n" * size}
