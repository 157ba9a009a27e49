"""Outputs written to clients' regions on their way to the reply."""

from typing import Any

import pytest

from nereid.core.messages import ErrorStatus, InferRequest, InferResponse
from nereid.pb import kserve_pb2
from nereid.services.gateway.client_shm.outputs import Outputs
from nereid.services.gateway.client_shm.regions import (
    SYSTEM,
    Range,
    Regions,
    RegionUse,
    Registration,
)
from nereid.services.gateway.infer_chain import RequestHandle
from tests.support.gateway.scripted_mesh import ScriptedMesh

HEAD = kserve_pb2.ModelInferResponse(
    model_name="m",
    outputs=[
        kserve_pb2.ModelInferResponse.InferOutputTensor(name="A"),
        kserve_pb2.ModelInferResponse.InferOutputTensor(name="B"),
    ],
).SerializeToString()


class Bytes:
    """Memory of this process; there is room for 8 bytes."""

    def __init__(self) -> None:
        self.data = bytearray(8)

    def read(self, offset: int, size_bytes: int) -> bytes:
        return bytes(self.data[offset : offset + size_bytes])

    def write(self, offset: int, data: Any) -> bool:
        self.data[offset : offset + len(data)] = data
        return True

    def close(self) -> None:
        self.data.clear()


class Mesh(ScriptedMesh):
    """What is behind the outputs that lie in a client's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Bytes()
        self.regions = Regions(allowed=True)
        self.regions.register(Registration(SYSTEM, "r", 8, "k"), lambda: self.memory)
        self.outputs = Outputs(self.regions, self.infer)

    def send(self, *places: tuple[str, Range]) -> RequestHandle:
        request = InferRequest(1, b"", [])
        self.regions.use(request, RegionUse((), places))
        return self.outputs.infer(request, self.told.append)

    @property
    def users(self) -> int:
        return self.regions.find(Range("r", 0, 1)).users


def test_outputs_go_where_they_were_wanted() -> None:
    mesh = Mesh()
    mesh.send(("B", Range("r", 4, 4)), ("C", Range("r", 0, 4)))
    assert mesh.users == 2
    response = InferResponse(1, HEAD, [b"aa", b"bbb"])
    mesh.on_response(response)
    assert (mesh.told[0].head, mesh.told[0].payloads) == (HEAD, [b"aa", b""])
    assert mesh.memory.data == bytearray(b"\0\0\0\0bbb\0")
    # Whoever shares the answer still finds its payloads there.
    assert response.payloads == [b"aa", b"bbb"]
    assert mesh.users == 0


def test_an_output_that_does_not_fit_is_told() -> None:
    mesh = Mesh()
    mesh.send(("A", Range("r", 0, 1)))
    mesh.on_response(InferResponse(1, HEAD, [b"aa", b"bbb"]))
    assert mesh.told[0].error == ErrorStatus(
        13,
        "shared memory size specified with the request for output 'A' (1 bytes) should be at least"
        " 2 bytes to hold the results",
        accepted=True,
    )
    assert mesh.memory.data == bytearray(8)
    assert mesh.users == 0


def test_failures_pass_as_they_are() -> None:
    mesh = Mesh()
    mesh.send(("A", Range("r", 0, 8)))
    failure = InferResponse(1, error=ErrorStatus(14, "no"))
    mesh.on_response(failure)
    assert mesh.told == [failure]
    assert mesh.users == 0


def test_a_cancelled_request_writes_nothing() -> None:
    mesh = Mesh()
    under_way = mesh.send(("A", Range("r", 0, 8)))
    under_way.cancel()
    under_way.cancel()
    assert mesh.users == 0
    assert mesh.cancelled == 2
    mesh.on_response(InferResponse(1, HEAD, [b"aa", b"bbb"]))
    assert mesh.memory.data == bytearray(8)
    assert mesh.users == 0


def test_each_of_several_responses_overwrites_the_one_before() -> None:
    mesh = Mesh()
    under_way = mesh.send(("B", Range("r", 0, 3)))
    for data, told in ((b"one", b"one"), (b"four", b"one"), (b"two", b"two")):
        mesh.on_response(InferResponse(1, HEAD, [b"", data], more=True))
        assert bytes(mesh.memory.data[:3]) == told
        assert mesh.users == 1
    under_way.set_flow(paused=True)
    assert mesh.flows == [True]
    mesh.on_response(InferResponse(1))
    assert mesh.users == 0
    assert [(response.more, response.error is None) for response in mesh.told] == [
        (True, True),
        (True, False),
        (True, True),
        (False, True),
    ]


def test_requests_without_regions_go_straight_through() -> None:
    mesh = Mesh()
    assert mesh.outputs.infer(InferRequest(1, b"", []), mesh.told.append) is mesh
    mesh.on_response(InferResponse(1, HEAD, [b"aa", b"bbb"]))
    assert mesh.told[0].payloads == [b"aa", b"bbb"]


def test_the_table_of_heads_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nereid.services.gateway.client_shm.outputs._MOST_HEADS", 2)
    mesh = Mesh()
    for name in ("a", "b", "c", "x" * 10000):
        output = kserve_pb2.ModelInferResponse.InferOutputTensor(name=name)
        head = kserve_pb2.ModelInferResponse(outputs=[output]).SerializeToString()
        assert mesh.outputs.names(head) == mesh.outputs.names(head) == (name,)
    assert len(mesh.outputs._names) == 1
