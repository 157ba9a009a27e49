"""Members of batches as requests: inline tensors, shared memory, malformed ones."""

from typing import Any

import pytest

from nereid.backends import Request
from nereid.core.errors import Internal
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory
from nereid_executor.batch.batch_reader import request_of
from nereid_executor.batch.requests import RequestReader

PLACE = SharedMemory("1.2.3", 64, 8)


def head(*outputs: str) -> bytes:
    request = kserve_pb2.ModelInferRequest(model_name="m")
    for name in ("A", "B"):
        request.inputs.add(name=name, datatype="FP32", shape=[1, 2])
    for name in outputs:
        request.outputs.add(name=name)
    return request.SerializeToString()


def read(reader: RequestReader, member: pb.BatchMember, buffer: Any = None) -> Request:
    return reader.read_request(request_of(member), buffer)


def member(*payloads: bytes | SharedMemory, **more: Any) -> pb.BatchMember:
    made = pb.BatchMember(head=head(), **more)
    for payload in payloads:
        if isinstance(payload, SharedMemory):
            made.payloads.add().shared_memory.CopyFrom(pb.SharedMemory(**payload._asdict()))
        else:
            made.payloads.add(inline=payload)
    return made


@pytest.mark.parametrize(
    "tensors", [(b"12345678", b"87654321"), (b"12345678", b""), (PLACE, b"12345678"), (b"", PLACE)]
)
def test_tensors_are_inline_or_references(tensors: tuple[bytes | SharedMemory, ...]) -> None:
    request = read(RequestReader(("X",)), member(*tensors))
    assert tuple(request.tensors) == tensors
    assert request.spec.inputs == (("A", "FP32", (1, 2)), ("B", "FP32", (1, 2)))


def test_what_a_request_has_beside_its_tensors() -> None:
    given = member(
        b"1", b"2", request_id="q", remaining_us=5, trace_context=b"t" * 26, timeout_us=7
    )
    given.parameters["p"].int64_param = 3
    request = read(RequestReader(("X",)), given, PLACE)
    assert request[2:] == ("q", {"p": 3}, b"t" * 26, 5, 7, PLACE)
    assert read(RequestReader(("X",)), member(b"1", b"2"))[2:] == (
        "",
        {},
        b"",
        0,
        0,
        None,
    )


def test_requests_with_equal_heads_share_their_spec() -> None:
    reader = RequestReader(("X", "Y"))
    first = read(reader, member(b"1", b"2"))
    assert read(reader, member(b"3", b"4")).spec is first.spec
    assert first.spec.outputs == ("X", "Y")
    other = member(b"1", b"2")
    other.head = head("Y")
    assert read(reader, other).spec.outputs == ("Y",)


@pytest.mark.parametrize("payloads", [(), (b"1",), (b"1", b"2", b"3")])
def test_a_request_has_as_many_tensors_as_inputs(payloads: tuple[bytes, ...]) -> None:
    with pytest.raises(Internal, match="has 2 inputs but"):
        read(RequestReader(()), member(*payloads))


def test_a_malformed_head() -> None:
    with pytest.raises(Internal, match="no ModelInferRequest"):
        read(RequestReader(()), pb.BatchMember(head=b"\xff"))
