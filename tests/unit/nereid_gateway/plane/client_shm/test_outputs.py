"""Outputs written to clients' regions before the response."""

from typing import Any

from nereid.core.wire.messages import ErrorStatus, InferResponse
from nereid.pb import kserve_pb2
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_handle import RequestHandle
from nereid_gateway.core.tensors.region_ranges import RegionRange, RegionRanges
from nereid_gateway.plane.client_shm.outputs import RegionOutputs
from nereid_gateway.plane.client_shm.regions import SYSTEM, Regions, Registration
from tests.support.gateway.scripted_mesh import ScriptedMesh
from tests.support.waiting import until

HEAD = kserve_pb2.ModelInferResponse(
    model_name="m",
    outputs=[
        kserve_pb2.ModelInferResponse.InferOutputTensor(name="A"),
        kserve_pb2.ModelInferResponse.InferOutputTensor(name="B"),
    ],
).SerializeToString()


class Bytes:
    """Memory of this process."""

    def __init__(self, size_bytes: int) -> None:
        self.data = bytearray(size_bytes)

    def read(self, offset: int, size_bytes: int) -> bytes:
        return bytes(self.data[offset : offset + size_bytes])

    def write(self, offset: int, data: Any) -> bool:
        self.data[offset : offset + len(data)] = data
        return True

    def close(self) -> None:
        self.data.clear()


class Mesh(ScriptedMesh):
    """The mesh behind Outputs, with one region of a client."""

    def __init__(self, size_bytes: int = 8) -> None:
        super().__init__()
        self.memory = Bytes(size_bytes)
        self.regions = Regions(allowed=True)
        self.regions.register(Registration(SYSTEM, "r", size_bytes, "k"), lambda: self.memory)
        self.outputs = RegionOutputs(self.infer)

    def infer_into(self, *ranges: tuple[str, RegionRange]) -> RequestHandle:
        return self.infer_with(RegionRanges((), ranges))

    def infer_with(self, ranges: RegionRanges) -> RequestHandle:
        request = ClientRequest(1, b"", [b""])
        self.regions.resolve_ranges(request, ranges)
        return self.outputs.infer(request, self.delivered.append)

    @property
    def users(self) -> int:
        return self.regions.find_region(RegionRange("r", 0, 1)).users


def test_outputs_are_written_to_their_ranges() -> None:
    mesh = Mesh()
    mesh.infer_into(("B", RegionRange("r", 4, 4)), ("C", RegionRange("r", 0, 4)))
    assert mesh.users == 2
    response = InferResponse(1, HEAD, [b"aa", b"bbb"])
    mesh.on_response(response)
    assert (mesh.delivered[0].head, mesh.delivered[0].payloads) == (HEAD, [b"aa", b""])
    assert mesh.memory.data == bytearray(b"\0\0\0\0bbb\0")
    # The original response, which other requests may share, keeps its payloads.
    assert response.payloads == [b"aa", b"bbb"]
    assert mesh.users == 0


def test_an_output_that_does_not_fit_is_an_error() -> None:
    mesh = Mesh()
    mesh.infer_into(("A", RegionRange("r", 0, 1)))
    mesh.on_response(InferResponse(1, HEAD, [b"aa", b"bbb"]))
    assert mesh.delivered[0].error == ErrorStatus(
        13,
        "shared memory size specified with the request for output 'A' (1 bytes) should be at least"
        " 2 bytes to hold the results",
        accepted=True,
    )
    assert mesh.memory.data == bytearray(8)
    assert mesh.users == 0


def test_errors_pass_unchanged() -> None:
    mesh = Mesh()
    mesh.infer_into(("A", RegionRange("r", 0, 8)))
    failure = InferResponse(1, error=ErrorStatus(14, "no"))
    mesh.on_response(failure)
    assert mesh.delivered == [failure]
    assert mesh.users == 0


def test_a_cancelled_request_writes_nothing() -> None:
    mesh = Mesh()
    submitted = mesh.infer_into(("A", RegionRange("r", 0, 8)))
    submitted.cancel()
    submitted.cancel()
    assert mesh.users == 0
    assert mesh.cancelled == 2
    mesh.on_response(InferResponse(1, HEAD, [b"aa", b"bbb"]))
    assert mesh.memory.data == bytearray(8)
    assert mesh.users == 0


def test_a_request_with_an_input_in_a_region_uses_it_until_its_last_response() -> None:
    mesh = Mesh()
    inputs = RegionRanges(((0, RegionRange("r", 0, 8)),), ())
    mesh.infer_with(inputs)
    response = InferResponse(1, HEAD, [b"aa", b"bbb"], more=True)
    mesh.on_response(response)
    assert mesh.delivered == [response]
    assert mesh.users == 1
    mesh.on_response(InferResponse(1))
    assert mesh.users == 0
    mesh.infer_with(inputs).cancel()
    assert mesh.users == 0


def test_each_of_several_responses_overwrites_the_one_before() -> None:
    mesh = Mesh()
    submitted = mesh.infer_into(("B", RegionRange("r", 0, 3)))
    for data, expected in ((b"one", b"one"), (b"four", b"one"), (b"two", b"two")):
        mesh.on_response(InferResponse(1, HEAD, [b"", data], more=True))
        assert bytes(mesh.memory.data[:3]) == expected
        assert mesh.users == 1
    submitted.set_flow(paused=True)
    assert mesh.flows == [True]
    mesh.on_response(InferResponse(1))
    assert mesh.users == 0
    assert [(response.more, response.error is None) for response in mesh.delivered] == [
        (True, True),
        (True, False),
        (True, True),
        (False, True),
    ]


def test_requests_without_regions_go_straight_through() -> None:
    mesh = Mesh()
    assert mesh.outputs.infer(ClientRequest(1, b"", []), mesh.delivered.append) is mesh
    mesh.on_response(InferResponse(1, HEAD, [b"aa", b"bbb"]))
    assert mesh.delivered[0].payloads == [b"aa", b"bbb"]


def test_the_table_of_heads_is_bounded() -> None:
    mesh = Mesh()
    outputs = RegionOutputs(mesh.infer, max_heads=2)
    for name in ("a", "b", "c", "x" * 10000):
        output = kserve_pb2.ModelInferResponse.InferOutputTensor(name=name)
        head = kserve_pb2.ModelInferResponse(outputs=[output]).SerializeToString()
        assert outputs.output_names(head) == outputs.output_names(head) == (name,)
    assert len(outputs._names) == 1


async def test_a_large_last_response_is_written_by_a_thread() -> None:
    size = (1 << 20) + 1
    mesh = Mesh(size)
    mesh.infer_into(("A", RegionRange("r", 0, size)))
    mesh.on_response(InferResponse(1, HEAD, [b"a" * size, b""]))
    assert not mesh.delivered
    assert mesh.users == 1
    await until(lambda: mesh.delivered)
    assert mesh.delivered[0].payloads == [b"", b""]
    assert mesh.memory.data == b"a" * size
    assert mesh.users == 0


async def test_a_region_is_in_use_while_a_thread_writes_to_it() -> None:
    size = (1 << 20) + 1
    mesh = Mesh(size)
    handle = mesh.infer_into(("A", RegionRange("r", 0, size)))
    mesh.on_response(InferResponse(1, HEAD, [bytes(size), b""]))
    handle.cancel()
    assert mesh.users == 1
    await until(lambda: not mesh.users)
    assert not mesh.delivered
