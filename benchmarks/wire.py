"""The one request of the benchmark on both protocols, and checks of a server's response.

Bytes come from NVIDIA's tritonclient, not from Nereid's code, so that both servers get what a
user's client would send. Must not know which server it talks to.
"""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2

from benchmarks import model
from benchmarks.failure import BenchError

GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"
HTTP_PATH = f"/v2/models/{model.NAME}/infer"
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Address:
    http_port: int
    grpc_port: int


@dataclass(frozen=True)
class HttpBody:
    data: bytes
    header_length: int


@dataclass(frozen=True)
class Counts:
    """A model's statistics so far: requests that succeeded and failed, model executions, and
    what of the successes came from the cache.
    """

    success: int
    fail: int
    executions: int
    cache_hits: int = 0


def grpc_message() -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model.NAME)
    tensor = request.inputs.add(name=model.INPUT, datatype="FP32")
    tensor.shape.extend([1, model.WIDTHS[0]])
    request.outputs.add(name=model.OUTPUT)
    request.raw_input_contents.append(model.example().tobytes())
    return bytes(request.SerializeToString())


def http_body() -> HttpBody:
    tensor = triton_http.InferInput(model.INPUT, [1, model.WIDTHS[0]], "FP32")
    tensor.set_data_from_numpy(model.example())
    data, length = triton_http.InferenceServerClient.generate_request_body(
        [tensor], outputs=[triton_http.InferRequestedOutput(model.OUTPUT, binary_data=True)]
    )
    return HttpBody(bytes(data), int(length))


def json_body() -> bytes:
    tensor = triton_http.InferInput(model.INPUT, [1, model.WIDTHS[0]], "FP32")
    tensor.set_data_from_numpy(model.example(), binary_data=False)
    data, _ = triton_http.InferenceServerClient.generate_request_body(
        [tensor], outputs=[triton_http.InferRequestedOutput(model.OUTPUT, binary_data=False)]
    )
    return bytes(data)


def wait_ready(
    address: Address,
    require_alive: Callable[[], None],
    timeout_s: float = 90.0,
    name: str = model.NAME,
) -> None:
    """Until the model is ready; ``require_alive`` raises when the server has ended."""
    url = f"http://127.0.0.1:{address.http_port}/v2/models/{name}/ready"
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        require_alive()
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError, http.client.HTTPException):
            time.sleep(0.1)
    raise BenchError(f"the model was not ready within {timeout_s:.0f} s ({url})")


def counts(address: Address, name: str = model.NAME) -> Counts:
    url = f"http://127.0.0.1:{address.http_port}/v2/models/{name}/stats"
    with urllib.request.urlopen(url, timeout=10) as response:
        return parse_counts(json.load(response))


def parse_counts(document: dict[str, Any]) -> Counts:
    stats = document["model_stats"][0]
    inference = stats["inference_stats"]
    return Counts(
        success=int(inference["success"].get("count", 0)),
        fail=int(inference["fail"].get("count", 0)),
        executions=int(stats.get("execution_count", 0)),
        cache_hits=int(inference.get("cache_hit", {}).get("count", 0)),
    )


def settled_counts(address: Address, timeout_s: float = 5.0, name: str = model.NAME) -> Counts:
    """The statistics once nothing moves them any more: load that was cut off is over."""
    give_up = time.monotonic() + timeout_s
    before = counts(address, name)
    while time.monotonic() < give_up:
        time.sleep(0.1)
        now = counts(address, name)
        if now == before:
            return now
        before = now
    raise BenchError(f"statistics still move {timeout_s:.0f} s after the load ended")


def verify(address: Address) -> int:
    """The very bytes of the load, and tritonclient's own calls, against numpy; both protocols.

    Returns the size of a gRPC response, which is checked in each run as well.
    """
    size = _verify_grpc_bytes(address)
    _verify_http_bytes(address)
    expected = model.expected_response(model.example(3))
    for module, port in ((triton_http, address.http_port), (triton_grpc, address.grpc_port)):
        client = module.InferenceServerClient(f"127.0.0.1:{port}")
        try:
            tensor = module.InferInput(model.INPUT, [3, model.WIDTHS[0]], "FP32")
            tensor.set_data_from_numpy(model.example(3))
            _require_equal(client.infer(model.NAME, [tensor]).as_numpy(model.OUTPUT), expected)
        finally:
            client.close()
    return size


def _verify_grpc_bytes(address: Address) -> int:
    with grpc.insecure_channel(f"127.0.0.1:{address.grpc_port}") as channel:
        # no serializer: bytes in, bytes out
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GRPC_PATH)
        wire_response = call(grpc_message(), timeout=30)
    response = service_pb2.ModelInferResponse.FromString(wire_response)
    _require_equal(np.frombuffer(response.raw_output_contents[0], np.float32))
    return len(wire_response)


def _verify_http_bytes(address: Address) -> None:
    body = http_body()
    connection = http.client.HTTPConnection("127.0.0.1", address.http_port, timeout=30)
    try:
        headers = {"Inference-Header-Content-Length": str(body.header_length)}
        connection.request("POST", HTTP_PATH, body.data, headers)
        response = connection.getresponse()
        wire_response = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise BenchError(f"HTTP {response.status}: {wire_response[:300].decode(errors='replace')}")
    length = response.headers["Inference-Header-Content-Length"]
    if length is None:
        raise BenchError("the HTTP response came without binary tensor data")
    _require_equal(np.frombuffer(wire_response[int(length) :], np.float32))


def _require_equal(found: Any, expected: model.Floats | None = None) -> None:
    if expected is None:
        expected = model.expected_response(model.example())
    if found is None or not np.allclose(
        np.reshape(found, expected.shape), expected, atol=_TOLERANCE
    ):
        raise BenchError(f"a wrong response: {found} where numpy computes {expected}")
