"""NVIDIA's own clients against a gateway."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from tests.support.gateway.gateway_site import GatewaySite, gateway_site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    # The call, and the status and text that it fails with.
    Cases = tuple[tuple[Callable[[], object], str, str], ...]

ARRAYS = {
    "BOOL": np.array([[True, False]]),
    "UINT8": np.array([[0, 255]], np.uint8),
    "UINT16": np.array([[0, 65535]], np.uint16),
    "UINT32": np.array([[0, 2**32 - 1]], np.uint32),
    "UINT64": np.array([[0, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 127]], np.int8),
    "INT16": np.array([[-(2**15), 2**15 - 1]], np.int16),
    "INT32": np.array([[-(2**31), 2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63), 2**63 - 1]], np.int64),
    "FP16": np.array([[0.5, -65504]], np.float16),
    "FP32": np.array([[0.1, -3e38]], np.float32),
    "FP64": np.array([[0.1, -1e300]], np.float64),
    "BYTES": np.array([[b"a", "é".encode()]], np.object_),
}


@pytest.fixture
async def site() -> AsyncIterator[GatewaySite]:
    async with gateway_site() as made:
        yield made


def tensors(client: Any, array: np.ndarray[Any, Any], datatype: str, **how: bool) -> list[Any]:
    tensor = client.InferInput("INPUT0", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, **how)
    return [tensor]


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.wait_for(asyncio.to_thread(work), 20)


async def test_every_datatype_over_http(site: GatewaySite) -> None:
    def work() -> None:
        with tritonclient.http.InferenceServerClient(site.http) as client:
            for datatype, array in ARRAYS.items():
                for binary_in in (True, False):
                    for binary_out in (True, False):
                        if datatype == "FP16" and not (binary_in and binary_out):
                            continue
                        result = client.infer(
                            "echo",
                            tensors(tritonclient.http, array, datatype, binary_data=binary_in),
                            outputs=[
                                tritonclient.http.InferRequestedOutput(
                                    "OUTPUT0", binary_data=binary_out
                                )
                            ],
                            request_id=datatype,
                        )
                        np.testing.assert_array_equal(
                            result.as_numpy("OUTPUT0").astype(array.dtype),
                            _from_json(array, binary_out),
                        )
                        assert result.get_response()["id"] == datatype

    await in_thread(work)


def _from_json(array: np.ndarray[Any, Any], binary: bool) -> np.ndarray[Any, Any]:
    """JSON has strings as text."""
    if array.dtype != np.object_ or binary:
        return array
    return np.array([[each.decode() for each in array[0]]], np.object_)


async def test_every_datatype_over_grpc(site: GatewaySite) -> None:
    def work() -> None:
        with tritonclient.grpc.InferenceServerClient(site.grpc) as client:
            for datatype, array in ARRAYS.items():
                result = client.infer(
                    "echo",
                    tensors(tritonclient.grpc, array, datatype),
                    request_id=datatype,
                    client_timeout=10,
                )
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)
                assert result.get_response().id == datatype

    await in_thread(work)


async def test_both_asyncio_flavours(site: GatewaySite) -> None:
    array = ARRAYS["FP32"]
    async with tritonclient.http.aio.InferenceServerClient(site.http) as http:
        results = await asyncio.gather(
            *(http.infer("echo", tensors(tritonclient.http, array, "FP32")) for _ in range(20))
        )
    for result in results:
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)
    async with tritonclient.grpc.aio.InferenceServerClient(site.grpc) as grpc:
        responses = await asyncio.gather(
            *(grpc.infer("echo", tensors(tritonclient.grpc, array, "FP32")) for _ in range(20))
        )
    for response in responses:
        np.testing.assert_array_equal(response.as_numpy("OUTPUT0"), array)


async def test_compression_both_ways(site: GatewaySite) -> None:
    array = np.zeros((1, 200_000), np.float32)

    def work() -> None:
        with tritonclient.http.InferenceServerClient(site.http) as client:
            for one, other in (("gzip", "deflate"), ("deflate", "gzip")):
                result = client.infer(
                    "echo",
                    tensors(tritonclient.http, array, "FP32"),
                    request_compression_algorithm=one,
                    response_compression_algorithm=other,
                )
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)
        with tritonclient.grpc.InferenceServerClient(site.grpc) as client:
            result = client.infer(
                "echo", tensors(tritonclient.grpc, array, "FP32"), compression_algorithm="gzip"
            )
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)

    await in_thread(work)


async def test_the_control_plane_over_http(site: GatewaySite) -> None:
    def work() -> None:
        with tritonclient.http.InferenceServerClient(site.http) as client:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready("echo", "1")
            assert not client.is_model_ready("nope")
            metadata = client.get_server_metadata()
            assert metadata["name"] == "triton"
            assert "statistics" in metadata["extensions"]
            assert client.get_model_metadata("echo")["inputs"][0] == {
                "name": "INPUT0",
                "datatype": "FP32",
                "shape": [-1],
            }
            config = client.get_model_config("echo")
            assert config["max_batch_size"] == 0
            assert config["input"][0]["data_type"] == "TYPE_FP32"
            statistics = client.get_inference_statistics("echo")["model_stats"]
            assert [each["name"] for each in statistics] == ["echo"]
            assert statistics[0]["inference_stats"]["success"] == {"count": 7, "ns": 0}
            assert len(client.get_inference_statistics()["model_stats"]) == 3
            index = client.get_model_repository_index()
            assert index[0] == {"name": "echo", "version": "1", "state": "READY"}
            assert index[-2]["reason"] == "no good"
            assert index[-1] == {"name": "never"}
            assert client.get_system_shared_memory_status() == []
            assert client.get_cuda_shared_memory_status() == []
            client.unregister_system_shared_memory()

    await in_thread(work)


async def test_the_control_plane_over_grpc(site: GatewaySite) -> None:
    def work() -> None:
        with tritonclient.grpc.InferenceServerClient(site.grpc) as client:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready("echo", "1")
            assert not client.is_model_ready("nope")
            assert "statistics" in client.get_server_metadata().extensions
            assert client.get_model_metadata("echo").inputs[0].name == "INPUT0"
            assert client.get_model_config("echo").config.input[0].dims == [-1]
            assert client.get_inference_statistics("echo").model_stats[0].inference_count == 7
            assert [each.name for each in client.get_model_repository_index().models] == [
                "echo",
                "hold",
                "fail",
                "broken",
                "never",
            ]
            assert not client.get_system_shared_memory_status().regions
            client.unregister_system_shared_memory()
            client.unregister_cuda_shared_memory()

    await in_thread(work)


async def test_failures_have_their_status_and_text(site: GatewaySite) -> None:
    array = ARRAYS["FP32"]

    def work() -> None:
        unknown = "Request for unknown model: 'nope' is not found"
        with tritonclient.http.InferenceServerClient(site.http) as http:
            inputs = tensors(tritonclient.http, array, "FP32")
            cases: Cases = (
                (lambda: http.infer("nope", inputs), "404", unknown),
                (lambda: http.infer("fail", inputs), "500", "asked to fail"),
                (lambda: http.get_model_metadata("nope"), "404", unknown),
                (lambda: http.get_inference_statistics("nope"), "400", "is not available"),
                (
                    lambda: http.register_system_shared_memory("r", "k", 4),
                    "501",
                    "Client shared memory is disabled. Start the server with",
                ),
                (lambda: http.get_system_shared_memory_status("r"), "404", "Unable to find system"),
            )
            for ask, status, text in cases:
                with pytest.raises(InferenceServerException, match=text) as caught:
                    ask()
                assert caught.value.status() == status
        with tritonclient.grpc.InferenceServerClient(site.grpc) as grpc:
            inputs = tensors(tritonclient.grpc, array, "FP32")
            more: Cases = (
                (lambda: grpc.infer("nope", inputs), "NOT_FOUND", unknown),
                (lambda: grpc.infer("fail", inputs), "INTERNAL", "asked to fail"),
                (lambda: grpc.get_model_metadata("nope"), "NOT_FOUND", unknown),
                (lambda: grpc.get_model_metadata("echo", "x"), "INVALID_ARGUMENT", "failed to get"),
                (
                    lambda: grpc.register_system_shared_memory("r", "k", 4),
                    "UNIMPLEMENTED",
                    "Client shared memory is disabled. Start the server with",
                ),
                (lambda: grpc.get_cuda_shared_memory_status("r"), "NOT_FOUND", "Unable to find cu"),
            )
            for ask, status, text in more:
                with pytest.raises(InferenceServerException, match=text) as caught:
                    ask()
                assert caught.value.status() == f"StatusCode.{status}"

    await in_thread(work)


async def test_parameters_and_deadlines_reach_the_scheduler(site: GatewaySite) -> None:
    array = ARRAYS["FP32"]
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def work() -> None:
        with tritonclient.http.InferenceServerClient(site.http) as http:
            http.infer(
                "echo",
                tensors(tritonclient.http, array, "FP32"),
                priority=2,
                timeout=1000,
                parameters={"k": "v"},
                headers={"traceparent": traceparent},
            )
        with tritonclient.grpc.InferenceServerClient(site.grpc) as grpc:
            grpc.infer(
                "echo",
                tensors(tritonclient.grpc, array, "FP32"),
                priority=2,
                timeout=1000,
                parameters={"k": "v"},
                headers={"traceparent": traceparent},
                client_timeout=100,
            )

    await in_thread(work)
    over_http, over_grpc = site.scheduler.received
    assert over_http.head == over_grpc.head
    for each in (over_http, over_grpc):
        assert (each.priority, each.timeout_us, each.parameters) == (2, 1000, {"k": "v"})
        assert each.trace_context == bytes.fromhex(traceparent.replace("-", ""))
    assert over_http.deadline is None
    assert over_grpc.deadline is not None
