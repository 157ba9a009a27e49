"""Services that get no more memory, with clients who send large requests and others beside them.

Libraries below Python may crash without memory. Then the service is restarted; no value is wrong,
and nobody waits for ever.
"""

from __future__ import annotations

import http.client
import json
import re
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest

from nereid.pb import kserve_pb2
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.e2e_models import make_repository

pytestmark = pytest.mark.slow

_HEADROOM_BYTES = 24 << 20
_LARGE = 8_000_000
# Where memory is missing in between, the log has the cause; protobuf does not say why it failed.
_NO_MEMORY = re.compile(
    "not enough memory|cannot be mapped|internal error|executor was lost|Unable to parse request"
)
_INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    """A mesh that has kept no large request's memory; each service in a process of its own."""
    with running(make_repository(tmp_path / "models"), tmp_path / "log", "--join=none") as started:
        yield started


@contextmanager
def limited(pid: int) -> Iterator[None]:
    """Bound a process's address space a little above what it has."""
    status = Path(f"/proc/{pid}/status").read_text()
    size_bytes = int(status.partition("VmSize:")[2].split()[0]) << 10
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (size_bytes + _HEADROOM_BYTES, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, before)


def infer_request(values: np.ndarray) -> kserve_pb2.ModelInferRequest:
    tensor = kserve_pb2.ModelInferRequest.InferInputTensor(
        name="INPUT0", datatype="FP32", shape=[1, len(values)]
    )
    return kserve_pb2.ModelInferRequest(
        model_name="identity_fp32", inputs=[tensor], raw_input_contents=[values.tobytes()]
    )


def call_grpc(channel: grpc.Channel, values: np.ndarray) -> str:
    """Return "ok", or the error's text; values that are wrong fail."""
    request = infer_request(values)
    infer = channel.unary_unary(
        _INFER,
        kserve_pb2.ModelInferRequest.SerializeToString,
        kserve_pb2.ModelInferResponse.FromString,
    )
    try:
        response = infer(request, timeout=60)
    except grpc.RpcError as error:
        return str(error.details())
    assert response.raw_output_contents[0] == values.tobytes()
    return "ok"


def call_http(mesh: Mesh, values: np.ndarray) -> str:
    """As call_grpc, with the status."""
    raw = values.tobytes()
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)]}
    inputs = [{**tensor, "parameters": {"binary_data_size": len(raw)}}]
    outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    connection = http.client.HTTPConnection(mesh.http, timeout=60)
    length = "Inference-Header-Content-Length"
    try:
        connection.request(
            "POST", "/v2/models/identity_fp32/infer", head + raw, {length: str(len(head))}
        )
        response = connection.getresponse()
        body = response.read()
    except (ConnectionError, http.client.HTTPException) as error:
        return f"connection lost: {error}"
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        return f"{response.status} {body.decode()}"
    assert body[int(response.headers[length]) :] == raw
    return "ok"


@pytest.mark.parametrize("service", ["executor", "scheduler", "gateway"])
def test_without_memory_the_large_request_alone_fails(mesh: Mesh, service: str) -> None:
    (pid,) = mesh.children(f"nereid_{service}")
    small, large = np.arange(16, dtype="<f4"), np.arange(_LARGE, dtype="<f4")
    unlimited = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(mesh.grpc, unlimited) as channel:
        assert call_grpc(channel, small) == call_http(mesh, small) == "ok"
        # What is imported with the first tensor in shared memory is there.
        assert call_grpc(channel, np.zeros(1 << 18, "<f4")) == "ok"
        others: list[str] = []
        over = threading.Event()

        def call_small() -> None:
            while not over.is_set():
                # On the connection of the large ones, as a proxy's clients share one.
                others.append(call_grpc(channel, small))
                others.append(call_http(mesh, small))

        with limited(pid):
            thread = threading.Thread(target=call_small)
            thread.start()
            try:
                ends = [call_grpc(channel, large) for _ in range(2)]
                ends += [call_http(mesh, large) for _ in range(2)]
            finally:
                over.set()
                thread.join()
        if mesh.children(f"nereid_{service}") != [pid]:
            until(lambda: f"nereid_{service} 0 ended (signal" in mesh.log.read_text(), "its end")
            until(lambda: call_http(mesh, large) == "ok", "the restarted service")
            return
        assert set(others) == {"ok"}
        # The scheduler sees no tensor of this size.
        expected = re.compile("ok") if service == "scheduler" else _NO_MEMORY
        assert [end for end in ends if not expected.search(end)] == []
        assert call_grpc(channel, large) == call_http(mesh, large) == "ok"


def call_stream(channel: grpc.Channel, request: kserve_pb2.ModelInferRequest) -> list[str]:
    """Send a request several times over one stream; return "ok" or an error's text for each."""
    infer = channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        kserve_pb2.ModelInferRequest.SerializeToString,
        kserve_pb2.ModelStreamInferResponse.FromString,
    )
    try:
        responses = infer(iter([request] * 6), timeout=60)
        return [response.error_message or "ok" for response in responses]
    except grpc.RpcError as error:
        return [str(error.details())]


def test_without_memory_streams_fail_and_the_gateway_goes_on(mesh: Mesh) -> None:
    (pid,) = mesh.children("nereid_gateway")
    large, small = infer_request(np.zeros(300_000, "<f4")), infer_request(np.zeros(16, "<f4"))
    unlimited = [("grpc.max_receive_message_length", -1)]
    with (
        grpc.insecure_channel(mesh.grpc, unlimited) as channel,
        ThreadPoolExecutor(32) as threads,
    ):
        assert call_stream(channel, large) == ["ok"] * 6
        with limited(pid):
            ends = [*threads.map(partial(call_stream, channel), [large] * 32)]
        expected = re.compile(f"ok|{_NO_MEMORY.pattern}")
        assert [end for each in ends for end in each if not expected.search(end)] == []
        assert mesh.children("nereid_gateway") == [pid]
        assert call_stream(channel, small) == call_stream(channel, large) == ["ok"] * 6
