"""The request of a model in each protocol, and checks of a server's response.

NVIDIA's tritonclient makes the bytes, not Nereid's code. So all servers get what the client of a
user would send. This module must not know which server it talks to.
"""

import enum
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2

from benchmarks.failure import BenchError
from benchmarks.models.workload import Arrays, Workload, datatype, is_close

GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"
STREAM_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"


class Dialect(enum.Enum):
    """Format of HTTP bodies: KServe v2, or JSON objects of lists, as in LitServe's examples."""

    KSERVE = "kserve"
    LISTS = "lists"


@dataclass(frozen=True)
class Address:
    """Address of a server and its ports."""

    http_port: int
    grpc_port: int


@dataclass(frozen=True)
class HttpBody:
    """Body of an HTTP request.

    header_length: length of the JSON before binary tensors; `None` means that there is only JSON.
    """

    path: str
    data: bytes
    header_length: int | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers that belong to the body."""
        if self.header_length is None:
            return {"Content-Type": "application/json"}
        return {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(self.header_length),
        }


@dataclass(frozen=True)
class Counts:
    """Statistics of a model so far.

    The statistics count successful and failed requests, model executions, and successful requests
    that were answered from the cache.
    """

    success: int
    fail: int
    executions: int
    cache_hits: int = 0


def http_path(workload: Workload) -> str:
    """Return the path for inference requests to the model."""
    return f"/v2/models/{workload.served}/infer"


def grpc_message(workload: Workload) -> bytes:
    """Return the request as a gRPC message."""
    request = service_pb2.ModelInferRequest(model_name=workload.served)
    for name, array in workload.request().items():
        tensor = request.inputs.add(name=name, datatype=datatype(array))
        tensor.shape.extend(array.shape)
        request.raw_input_contents.append(array.tobytes())
    for name in workload.expected:
        request.outputs.add(name=name)
    return bytes(request.SerializeToString())


def http_body(workload: Workload) -> HttpBody:
    """Return the request with binary tensors."""
    data, length = triton_http.InferenceServerClient.generate_request_body(
        _tensors(triton_http, workload.request()),
        outputs=[
            triton_http.InferRequestedOutput(name, binary_data=True) for name in workload.expected
        ],
    )
    return HttpBody(http_path(workload), bytes(data), int(length))


def json_body(workload: Workload, dialect: Dialect = Dialect.KSERVE) -> HttpBody:
    """Return the request with all tensors as JSON, in the request and in the response."""
    request = workload.request()
    if dialect is Dialect.LISTS:
        document: dict[str, Any] = {name: array.tolist() for name, array in request.items()}
        return HttpBody("/predict", json.dumps(document).encode())
    inputs = [
        {
            "name": name,
            "datatype": datatype(array),
            "shape": list(array.shape),
            "data": array.ravel().tolist(),
        }
        for name, array in request.items()
    ]
    document = {"inputs": inputs, "outputs": [{"name": name} for name in workload.expected]}
    return HttpBody(http_path(workload), json.dumps(document).encode())


def wait_ready(
    address: Address,
    require_alive: Callable[[], None],
    name: str,
    timeout_s: float = 90.0,
    dialect: Dialect = Dialect.KSERVE,
) -> None:
    """Wait until the model is ready; require_alive: raises if the server has ended."""
    path = f"v2/models/{name}/ready" if dialect is Dialect.KSERVE else "health"
    url = f"http://127.0.0.1:{address.http_port}/{path}"
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        require_alive()
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError, http.client.HTTPException):
            time.sleep(0.1)
    raise BenchError(f"the model was not ready within {timeout_s:.0f} s ({url})")


def counts(address: Address, name: str) -> Counts:
    """Return the model's statistics."""
    url = f"http://127.0.0.1:{address.http_port}/v2/models/{name}/stats"
    with urllib.request.urlopen(url, timeout=10) as response:
        return parse_counts(json.load(response))


def parse_counts(document: dict[str, Any]) -> Counts:
    """Parse a document of statistics."""
    stats = document["model_stats"][0]
    inference = stats["inference_stats"]
    return Counts(
        success=int(inference["success"].get("count", 0)),
        fail=int(inference["fail"].get("count", 0)),
        executions=int(stats.get("execution_count", 0)),
        cache_hits=int(inference.get("cache_hit", {}).get("count", 0)),
    )


def settled_counts(read: Callable[[], Counts], quiet_s: float = 0.1) -> Counts:
    """Return the statistics when they have not changed for `quiet_s` seconds.

    Requests that were cut off have then ended.
    """
    give_up = time.monotonic() + 5 + 4 * quiet_s
    before = read()
    while time.monotonic() < give_up:
        time.sleep(quiet_s)
        now = read()
        if now == before:
            return now
        before = now
    raise BenchError("statistics still move long after the load ended")


def verify_grpc(address: Address, workload: Workload) -> int:
    """Send the load's exact bytes, and check the response against the expected outputs.

    Returns the size of the response. Each run checks this size, too.
    """
    with grpc.insecure_channel(f"127.0.0.1:{address.grpc_port}") as channel:
        # Without serializers: bytes in, bytes out.
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GRPC_PATH)
        wire_response = call(grpc_message(workload), timeout=60)
    require_grpc_response(workload, wire_response)
    return len(wire_response)


def verify_stream(address: Address, workload: Workload) -> int:
    """Check the responses of a decoupled model as verify_grpc() does.

    Returns the size of a response; all responses must have the same size.
    """
    with grpc.insecure_channel(f"127.0.0.1:{address.grpc_port}") as channel:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(STREAM_PATH)
        wire_responses = list(call(iter([grpc_message(workload)]), timeout=60))
    if len(wire_responses) != workload.responses:
        raise BenchError(f"{len(wire_responses)} responses, expected {workload.responses}")
    if len({len(wire_response) for wire_response in wire_responses}) != 1:
        raise BenchError("the responses of a stream differ in size")
    for wire_response in wire_responses:
        response = service_pb2.ModelStreamInferResponse.FromString(wire_response)
        if response.error_message:
            raise BenchError(response.error_message)
        require_grpc_response(workload, response.infer_response.SerializeToString())
    return len(wire_responses[0])


def require_grpc_response(workload: Workload, wire_response: bytes) -> None:
    """Raise BenchError if a response is wrong."""
    response = service_pb2.ModelInferResponse.FromString(wire_response)
    raw = response.raw_output_contents
    found = {}
    for index, output in enumerate(response.outputs):
        expected = workload.expected.get(output.name)
        if expected is not None and raw:
            found[output.name] = np.frombuffer(raw[index], expected.dtype)
        else:
            found[output.name] = np.asarray(output.contents.fp32_contents, np.float32)
    _require_equal(workload, found, workload.response())


def verify_http(address: Address, workload: Workload) -> None:
    """Check as verify_grpc does, with binary tensors over HTTP."""
    wire_response, length = _post(address, http_body(workload))
    if length is None:
        raise BenchError("the HTTP response came without binary tensor data")
    header, tensors = json.loads(wire_response[:length]), wire_response[length:]
    found, start = {}, 0
    for output in header["outputs"]:
        end = start + output["parameters"]["binary_data_size"]
        found[output["name"]] = np.frombuffer(tensors[start:end], np.float32)
        start = end
    _require_equal(workload, found, workload.response())


def verify_json(address: Address, workload: Workload, dialect: Dialect) -> None:
    """Check as verify_grpc does, with JSON over HTTP."""
    wire_response, length = _post(address, json_body(workload, dialect))
    if length is not None:
        raise BenchError("the response to JSON came with binary tensor data")
    document = json.loads(wire_response)
    if dialect is Dialect.KSERVE:
        document = {output["name"]: output["data"] for output in document["outputs"]}
    found = {name: np.asarray(data, np.float32) for name, data in document.items()}
    _require_equal(workload, found, workload.response())


def verify_client_calls(address: Address, workload: Workload) -> None:
    """Check tritonclient's own calls, with a batch of different rows, on both protocols."""
    for module, port in ((triton_http, address.http_port), (triton_grpc, address.grpc_port)):
        client = module.InferenceServerClient(f"127.0.0.1:{port}")
        try:
            outputs = [module.InferRequestedOutput(name) for name in workload.expected]
            tensors = _tensors(module, workload.inputs)
            result = client.infer(workload.served, tensors, outputs=outputs)
            found = {name: result.as_numpy(name) for name in workload.expected}
        finally:
            client.close()
        _require_equal(workload, found, workload.expected)


def _tensors(module: Any, arrays: Arrays) -> list[Any]:
    tensors = []
    for name, array in arrays.items():
        tensors.append(module.InferInput(name, list(array.shape), datatype(array)))
        tensors[-1].set_data_from_numpy(array)
    return tensors


def _post(address: Address, body: HttpBody) -> tuple[bytes, int | None]:
    """Return the response's bytes, and the length of the JSON before its tensors or `None`."""
    connection = http.client.HTTPConnection("127.0.0.1", address.http_port, timeout=60)
    try:
        connection.request("POST", body.path, body.data, body.headers())
        response = connection.getresponse()
        wire_response = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise BenchError(f"HTTP {response.status}: {wire_response[:300].decode(errors='replace')}")
    length = response.headers["Inference-Header-Content-Length"]
    return wire_response, None if length is None else int(length)


def _require_equal(workload: Workload, found: Mapping[str, Any], expected: Arrays) -> None:
    for name, array in expected.items():
        if name not in found or not is_close(found[name], array, workload.tolerance):
            raise BenchError(
                f"a wrong response: {name} is {found.get(name)} where numpy computes {array}"
            )
