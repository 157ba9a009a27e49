"""Members of batches as requests: what is inline, what lies in shared memory, what is amiss."""

from typing import Any

import pytest

from nereid.core.errors import Internal
from nereid.core.messages import SharedMemory
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.batch.requests import Requests

PLACE = SharedMemory("1.2.3", 64, 8)


def head(*outputs: str) -> bytes:
    request = kserve_pb2.ModelInferRequest(model_name="m")
    for name in ("A", "B"):
        request.inputs.add(name=name, datatype="FP32", shape=[1, 2])
    for name in outputs:
        request.outputs.add(name=name)
    return request.SerializeToString()


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
def test_tensors_are_where_they_are(tensors: tuple[bytes | SharedMemory, ...]) -> None:
    request = Requests(("X",)).read(member(*tensors), None)
    assert tuple(request.tensors) == tensors
    assert request.spec.inputs == (("A", "FP32", (1, 2)), ("B", "FP32", (1, 2)))


def test_what_is_told_of_a_request() -> None:
    given = member(
        b"1", b"2", request_id="q", remaining_us=5, trace_context=b"t" * 26, timeout_us=7
    )
    given.parameters["p"].int64_param = 3
    request = Requests(("X",)).read(given, PLACE)
    assert request[2:] == ("q", {"p": 3}, b"t" * 26, 5, 7, PLACE)
    assert Requests(("X",)).read(member(b"1", b"2"), None)[2:] == ("", {}, b"", 0, 0, None)


def test_alike_requests_share_their_form() -> None:
    requests = Requests(("X", "Y"))
    first = requests.read(member(b"1", b"2"), None)
    assert requests.read(member(b"3", b"4"), None).spec is first.spec
    assert first.spec.outputs == ("X", "Y")
    other = member(b"1", b"2")
    other.head = head("Y")
    assert requests.read(other, None).spec.outputs == ("Y",)


@pytest.mark.parametrize("payloads", [(), (b"1",), (b"1", b"2", b"3")])
def test_a_request_has_as_many_tensors_as_inputs(payloads: tuple[bytes, ...]) -> None:
    with pytest.raises(Internal, match="has 2 inputs but"):
        Requests(()).read(member(*payloads), None)


def test_a_head_that_is_none() -> None:
    with pytest.raises(Internal, match="no ModelInferRequest"):
        Requests(()).read(pb.BatchMember(head=b"\xff"), None)
