"""`nereid adopt` between two meshes, of which one stands for the old server."""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from operator import gt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, shared_memory

from nereid.pb import kserve_pb2
from nereid.rpc import RpcError, SocketChannel
from nereid_adopt.proxy.recorder import BROKEN_SEQUENCE, REUSED_ID
from tests.support.mesh.adopting import NEREID, Adopting, adopting
from tests.support.mesh.mesh import Mesh, free_port, running, until
from tests.support.models import accumulators, e2e_models, python_models
from tests.support.peers.http_server import http_server

pytestmark = pytest.mark.slow

_X = np.arange(8, dtype=np.float32).reshape(1, 8)
_INFER = "/inference.GRPCInferenceService/ModelInfer"


def _write(root: Path, factor: int) -> Path:
    """Models of several kinds; `scaled` multiplies by the factor."""
    e2e_models.save_scaler(root, "same", 2, "")
    e2e_models.save_scaler(root, "scaled", factor, "")
    accumulators.save(root, "sequence", "onnxruntime")
    python_models.save(root, "repeat", python_models.REPEAT)
    return root


@pytest.fixture(scope="module")
def meshes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mesh, Mesh]]:
    with contextlib.ExitStack() as stack:
        started = []
        for factor in (2, 3):
            root = _write(tmp_path_factory.mktemp("repository"), factor)
            log = tmp_path_factory.mktemp("mesh") / "log"
            flags = ("--allow-client-shm=true", "--model-control-mode=poll")
            started.append(stack.enter_context(running(root, log, *flags)))
        yield started[0], started[1]


@pytest.fixture
def proxy(meshes: tuple[Mesh, Mesh], tmp_path: Path) -> Iterator[Adopting]:
    old, new = meshes
    with adopting(old.http, old.grpc, tmp_path, *_to(new)) as started:
        yield started


def _to(new: Mesh) -> tuple[str, str]:
    return f"--to={new.http}", f"--to-grpc={new.grpc}"


def _inputs(module: Any, array: np.ndarray[Any, Any] = _X, name: str = "INPUT0") -> list[Any]:
    tensor = module.InferInput(name, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return [tensor]


def _difference(report: dict[str, Any], model: str) -> dict[str, Any]:
    [found] = [item for item in report["comparison"]["models"] if item["name"] == model]
    [difference] = found["differences"]
    return dict(difference)


def _process_of_copies(proxy: Adopting) -> int:
    pid = proxy.process.pid
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_responses_of_both_protocols_are_compared(proxy: Adopting) -> None:
    http = tritonclient.http.InferenceServerClient(proxy.http)
    grpc = tritonclient.grpc.InferenceServerClient(proxy.grpc)
    for module, client in ((tritonclient.http, http), (tritonclient.grpc, grpc)):
        for model in ("same", "scaled"):
            result = client.infer(model, _inputs(module), request_id="r")
            assert result.as_numpy("OUTPUT0").tolist() == (2 * _X).tolist()
        with pytest.raises(InferenceServerException, match="unknown model"):
            client.infer("no_such_model", _inputs(module))
    http.infer(
        "scaled",
        _inputs(tritonclient.http),
        request_compression_algorithm="gzip",
        response_compression_algorithm="deflate",
    )
    json_body = {
        "inputs": [{"name": "INPUT0", "shape": [1, 8], "datatype": "FP32", "data": [1] * 8}]
    }
    assert proxy.get("/v2/models/same/infer", "POST", json.dumps(json_body).encode())[0] == 200
    report = proxy.await_compared(8)
    assert report["comparison"]["compared"] == 8
    assert report["comparison"]["differing"] == 3
    difference = _difference(report, "scaled")
    assert (difference["kind"], difference["name"], difference["worst"]) == ("value", "OUTPUT0", 7)
    assert difference["examples"][0]["request_id"] == "r"
    assert difference["examples"][0]["inputs"]["INPUT0"]["shape"] == [1, 8]
    assert report["responses"] == {"old": 8, "new": 0}


def test_traffic_is_turned_over_and_back_under_load(proxy: Adopting) -> None:
    """A failed request fails the test; a sequence that changed servers has a wrong sum."""
    end = threading.Event()
    failures: list[BaseException] = []
    done = [0, 0, 0]

    def repeat(place: int, make: Callable[[], Callable[[], None]]) -> None:
        try:
            step = make()
            while not end.is_set():
                step()
                done[place] += 1
        except BaseException as error:
            failures.append(error)

    def infer(module: Any, url: str) -> Callable[[], None]:
        client = module.InferenceServerClient(url)
        return lambda: client.infer("same", _inputs(module))

    def sequence() -> Callable[[], None]:
        client = tritonclient.grpc.InferenceServerClient(proxy.grpc)
        numbers = iter(range(1, 1_000_000))

        def run() -> None:
            number, total = next(numbers), 0
            for step in range(8):
                total += step
                tensor = tritonclient.grpc.InferInput("INPUT", [1, 1], "INT32")
                tensor.set_data_from_numpy(np.array([[step]], np.int32))
                flags = {"sequence_start": step == 0, "sequence_end": step == 7}
                result = client.infer("sequence", [tensor], sequence_id=number, **flags)
                assert result.as_numpy("OUTPUT")[0, 0] == total

        return run

    makers = (
        lambda: infer(tritonclient.http, proxy.http),
        lambda: infer(tritonclient.grpc, proxy.grpc),
        sequence,
    )
    threads = [threading.Thread(target=repeat, args=pair) for pair in enumerate(makers)]
    for thread in threads:
        thread.start()
    try:
        for weight in (30, 100, 0, 60):
            wanted = [count + 5 for count in done]
            proxy.turn(weight)

            def have_passed(wanted: list[int] = wanted) -> bool:
                return bool(failures) or all(map(gt, done, wanted))

            until(have_passed, "requests at this weight")
        proxy.back()
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert not failures, failures
    report = proxy.report()
    assert report["responses"]["old"] > 0
    assert report["responses"]["new"] > 0
    assert (report["weight"], report["failed"], report["failed_over"]) == (0, 0, 0)
    assert report["comparison"]["differing"] == 0


def test_an_id_moves_to_the_other_server_after_its_copies(proxy: Adopting) -> None:
    client = tritonclient.grpc.InferenceServerClient(proxy.grpc)

    def infer(step: int, **flags: bool) -> int:
        tensor = tritonclient.grpc.InferInput("INPUT", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[step]], np.int32))
        result = client.infer("sequence", [tensor], sequence_id=7, **flags)
        return int(result.as_numpy("OUTPUT")[0, 0])

    copies = _process_of_copies(proxy)
    os.kill(copies, signal.SIGSTOP)
    for _ in range(3):
        assert (infer(1, sequence_start=True), infer(2, sequence_end=True)) == (1, 3)
    proxy.turn(100)
    assert infer(4, sequence_start=True) == 4
    os.kill(copies, signal.SIGCONT)
    report = proxy.await_compared(7)
    assert (report["responses"], report["comparison"]["compared"]) == ({"old": 7, "new": 0}, 6)
    # The copies have not ended the client's sequence.
    assert infer(5, sequence_end=True) == 9

    def has_moved() -> bool:
        assert infer(1, sequence_start=True, sequence_end=True) == 1
        return bool(proxy.report()["responses"]["new"])

    until(has_moved, "a sequence at the new server")
    reasons = {REUSED_ID, BROKEN_SEQUENCE}
    assert {item["reason"] for item in proxy.report()["not_copied"]} == reasons


def test_streams_of_any_number_of_responses_are_compared(proxy: Adopting) -> None:
    client = tritonclient.grpc.InferenceServerClient(proxy.grpc)
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: results.put((result, error)))
    for number in range(3):
        tensors = []
        for name, array, datatype in (
            ("COUNT", np.array([number], np.int32), "INT32"),
            ("SIZE", np.array([4], np.int32), "INT32"),
            ("MODE", np.array([b"then_end"], np.object_), "BYTES"),
        ):
            tensors.append(tritonclient.grpc.InferInput(name, [1], datatype))
            tensors[-1].set_data_from_numpy(array)
        client.async_stream_infer("repeat", tensors, request_id=str(number))
    for _ in range(3):
        assert results.get(timeout=30)[1] is None
    client.stop_stream()
    report = proxy.await_compared(2)
    assert report["comparison"]["differing"] == 0
    [model] = report["comparison"]["models"]
    assert (model["name"], model["compared"]) == ("repeat", 2)


def test_a_copy_of_a_stream_writes_into_no_region(proxy: Adopting) -> None:
    client = tritonclient.grpc.InferenceServerClient(proxy.grpc)
    region = shared_memory.create_shared_memory_region("adopt_s", "/adopt_s", 32)
    client.register_system_shared_memory("adopt_s", "/adopt_s", 32)
    try:
        results: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: results.put((result, error)))
        output = tritonclient.grpc.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("adopt_s", 32)
        for outputs in (None, [output]):
            inputs = _inputs(tritonclient.grpc)
            client.async_stream_infer("scaled", inputs, outputs=outputs)
            assert results.get(timeout=30)[1] is None
        client.stop_stream()
        report = proxy.await_compared(1)
        assert {"model": "scaled", "reason": "shared memory in a stream", "count": 1} in report[
            "not_copied"
        ]
        content = shared_memory.get_contents_as_numpy(region, np.float32, [1, 8])
        assert content.tolist() == (2 * _X).tolist()
    finally:
        client.unregister_system_shared_memory("adopt_s")
        shared_memory.destroy_shared_memory_region(region)


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc])
def test_shared_memory_is_compared_by_its_contents(proxy: Adopting, module: Any) -> None:
    address = proxy.http if module is tritonclient.http else proxy.grpc
    client = module.InferenceServerClient(address)
    regions = {}
    for name in ("adopt_in", "adopt_out"):
        regions[name] = shared_memory.create_shared_memory_region(name, f"/{name}", 64)
        client.register_system_shared_memory(name, f"/{name}", 64)
    try:
        shared_memory.set_shared_memory_region(regions["adopt_in"], [_X])
        tensor = module.InferInput("INPUT0", [1, 8], "FP32")
        tensor.set_shared_memory("adopt_in", 32)
        output = module.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("adopt_out", 64)
        client.infer("scaled", [tensor], outputs=[output])
        content = shared_memory.get_contents_as_numpy(regions["adopt_out"], np.float32, [1, 8])
        assert content.tolist() == (2 * _X).tolist()
        report = proxy.await_compared(1)
        # The other server computed from the same inputs, and wrote nothing into the region.
        assert _difference(report, "scaled")["worst"] == 7
        assert content.tolist() == (2 * _X).tolist()
        assert all(change["same_outcome"] for change in report["changes"])
        proxy.turn(100)
        client.infer("scaled", [tensor], outputs=[output])
        assert content.tolist() == (3 * _X).tolist()
    finally:
        for name, region in regions.items():
            client.unregister_system_shared_memory(name)
            shared_memory.destroy_shared_memory_region(region)


def test_the_old_server_responds_if_the_new_one_cannot(
    meshes: tuple[Mesh, Mesh], tmp_path: Path
) -> None:
    old, _ = meshes
    nobody = free_port(), free_port()
    to = (f"--to=127.0.0.1:{nobody[0]}", f"--to-grpc=127.0.0.1:{nobody[1]}", "--weight=100")
    with adopting(old.http, old.grpc, tmp_path, *to) as proxy:
        http = tritonclient.http.InferenceServerClient(proxy.http)
        grpc = tritonclient.grpc.InferenceServerClient(proxy.grpc)
        http.infer("same", _inputs(tritonclient.http))
        grpc.infer("same", _inputs(tritonclient.grpc))
        results: queue.Queue[tuple[Any, Any]] = queue.Queue()
        grpc.start_stream(lambda result, error: results.put((result, error)))
        grpc.async_stream_infer("same", _inputs(tritonclient.grpc))
        assert results.get(timeout=30)[1] is None
        grpc.stop_stream()
        report = proxy.report()
    assert (report["failed"], report["failed_over"]) == (0, 3)


def test_a_new_server_that_hangs_delays_nobody(proxy: Adopting, meshes: tuple[Mesh, Mesh]) -> None:
    client = tritonclient.grpc.InferenceServerClient(proxy.grpc)
    with meshes[1].held("nereid_executor"):
        for _ in range(100):
            client.infer("same", _inputs(tritonclient.grpc), client_timeout=10)
    assert proxy.await_compared(100)["comparison"]["differing"] == 0


def test_the_report_survives_the_death_of_the_process_of_copies(proxy: Adopting) -> None:
    client = tritonclient.grpc.InferenceServerClient(proxy.grpc)
    sent = 0

    def infer(number: int) -> None:
        nonlocal sent
        for _ in range(number):
            for model in ("same", "scaled"):
                client.infer(model, _inputs(tritonclient.grpc), request_id=f"r{sent}")
                sent += 1

    for _ in range(2):
        infer(10)
        before = proxy.await_compared(sent)
        # Some of them are compared after the report, which is the last checkpoint.
        infer(10)
        os.kill(_process_of_copies(proxy), signal.SIGKILL)
        infer(100)

        def compares_anew(compared: int = before["comparison"]["compared"]) -> bool:
            infer(1)
            return bool(proxy.report()["comparison"].get("compared", 0) > compared)

        until(compares_anew, "another process of copies")
    report = proxy.await_compared(sent)
    comparison = report["comparison"]
    lost = sum(item["count"] for item in report["not_copied"])
    full = sum(comparison["not_compared"].values())
    assert comparison["compared"] + lost + full == sent == report["responses"]["old"]
    assert {item["reason"] for item in report["not_copied"]} <= {"the process of copies died"}
    assert comparison["compared"] >= 40
    difference = _difference(report, "scaled")
    [scaled] = [model for model in comparison["models"] if model["name"] == "scaled"]
    assert difference["count"] == scaled["differing"] == scaled["compared"]
    # The first of equally bad examples stay.
    numbers = [int(example["request_id"][1:]) for example in difference["examples"]]
    assert len(numbers) == 5
    assert max(numbers) < 20


def test_messages_that_are_too_large_have_no_copy(
    meshes: tuple[Mesh, Mesh], tmp_path: Path
) -> None:
    old, new = meshes
    large = np.zeros(1 << 19, np.float32)
    with adopting(old.http, old.grpc, tmp_path, *_to(new), "--max-copy-mib=1") as proxy:
        for module, address in (
            (tritonclient.http, proxy.http),
            (tritonclient.grpc, proxy.grpc),
        ):
            client = module.InferenceServerClient(address)
            # The model takes eight elements: the refusal comes from the old server.
            with pytest.raises(InferenceServerException, match="batch-size must be"):
                client.infer("same", _inputs(module, large))
        report = proxy.report()
    assert report["not_copied"] == [
        {"model": "same", "reason": "the request is too large", "count": 2}
    ]


async def test_calls_of_any_method_are_passed_on(proxy: Adopting) -> None:
    channel = SocketChannel(proxy.grpc)
    try:
        with pytest.raises(RpcError, match="unknown method"):
            await channel.unary("/a.B/C", b"")
        response = await channel.unary("/inference.GRPCInferenceService/ServerMetadata", b"")
        assert kserve_pb2.ServerMetadataResponse.FromString(response).name
        # A message that is no request is refused by the server, not by the proxy.
        with pytest.raises(RpcError):
            await channel.unary(_INFER, b"\xff\xff")
    finally:
        await channel.close()


class _OldServer:
    """A server that responds with given bytes, and keeps what it received."""

    def __init__(self, response: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._response = response
        self.received = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # The proxy's own calls end when they find no response.
        while not self.received.endswith(b"end"):
            connection, _ = self._listener.accept()
            with connection:
                received = connection.recv(65536)
                if received.startswith(b"GET /v2 "):
                    continue
                while not received.endswith(b"end"):
                    received += connection.recv(65536)
                self.received = received
                connection.sendall(self._response)
                connection.recv(1)

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize(
    ("request_bytes", "response"),
    [
        (
            b"POST /v2/models/m/infer HTTP/1.1\r\nhOST: x\r\nX-Odd:  a  b\r\n"  # noqa: ISC004
            b"Content-Length: 3\r\n\r\nend",
            b"HTTP/1.1 299 Very Odd\r\nX-ODD:   y\r\nTransfer-Encoding: chunked\r\n\r\n"  # noqa: ISC004
            b"3;ext=1\r\nabc\r\n0\r\nTrailer: t\r\n\r\n",
        ),
        (
            b"BREW /pot?end HTTP/1.1\r\nHost: x\r\n\r\nend",
            b"HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\nno",
        ),
    ],
)
def test_responses_are_passed_on_byte_by_byte(
    request_bytes: bytes, response: bytes, tmp_path: Path
) -> None:
    old = _OldServer(response)
    to = ("--to=127.0.0.1:1", "--to-grpc=127.0.0.1:1")
    try:
        with adopting(old.address, old.address, tmp_path, *to) as proxy:
            with socket.create_connection(("127.0.0.1", proxy.http_port), 30) as client:
                client.sendall(request_bytes)
                received = b""
                while len(received) < len(response):
                    received += client.recv(65536)
            assert received == response
            words = request_bytes.replace(b":  a", b": a").split(b"\r\n")
            assert [word for word in words if word not in old.received] == []
    finally:
        old.close()


def test_a_mesh_without_copies_gets_none(meshes: tuple[Mesh, Mesh], tmp_path: Path) -> None:
    old, new = meshes
    with adopting(old.http, old.grpc, tmp_path, *_to(new), "--copies=0") as proxy:
        http = tritonclient.http.InferenceServerClient(proxy.http)
        grpc = tritonclient.grpc.InferenceServerClient(proxy.grpc)
        before = new.get("/v2/models/scaled/stats")
        http.infer("scaled", _inputs(tritonclient.http))
        grpc.infer("scaled", _inputs(tritonclient.grpc))
        results: queue.Queue[tuple[Any, Any]] = queue.Queue()
        grpc.start_stream(lambda result, error: results.put((result, error)))
        grpc.async_stream_infer("scaled", _inputs(tritonclient.grpc))
        assert results.get(timeout=30)[1] is None
        grpc.stop_stream()
        # It reaches the mesh behind all copies.
        assert proxy.get("/v2/logging", "POST", b"{}")[0] == 200
        assert new.get("/v2/models/scaled/stats") == before
        report = proxy.report()
        text = proxy.text_report()
    assert (report["not_sampled"], report["not_copied"]) == (3, [])
    assert report["comparison"]["compared"] == 0
    assert "not copied: 3: --copies is 0" in text


def test_models_that_only_one_server_has_are_reported(
    meshes: tuple[Mesh, Mesh], tmp_path: Path
) -> None:
    old, _ = meshes
    e2e_models.save_scaler(tmp_path / "models", "same", 2, "")
    e2e_models.save_scaler(tmp_path / "models", "new_one", 2, "")
    with contextlib.ExitStack() as stack:
        new = stack.enter_context(running(tmp_path / "models", tmp_path / "log"))
        proxy = stack.enter_context(adopting(old.http, old.grpc, tmp_path, *_to(new)))
        client = tritonclient.grpc.InferenceServerClient(proxy.grpc)
        for model in ("same", "scaled", "scaled"):
            client.infer(model, _inputs(tritonclient.grpc))
        with pytest.raises(InferenceServerException, match="unknown model"):
            client.infer("new_one", _inputs(tritonclient.grpc))
        report = proxy.await_compared(4)
        text = proxy.text_report()
    found = {item["model"]: item["difference"] for item in report["control_calls"]["differences"]}
    lacks, has = (
        "only the old server serves it: the mesh has no such version",
        "only the mesh serves it: the old server has no such version",
    )
    assert found == {
        "new_one version 1": has,
        **{f"{model} version 1": lacks for model in ("repeat", "scaled", "sequence")},
    }
    # Each inference to such a model differs by its status.
    for model, number in (("scaled", 2), ("new_one", 1)):
        difference = _difference(report, model)
        assert (difference["kind"], difference["count"]) == ("status", number)
    assert report["comparison"]["differing"] == 3
    assert report["unexplained"] == 4 + 2
    assert f"  ready of scaled version 1: {lacks}" in text
    assert "6 kinds of difference are not explained" in text


def test_an_old_server_that_is_slower_is_reported(
    meshes: tuple[Mesh, Mesh], tmp_path: Path
) -> None:
    _, new = meshes
    hold = threading.Event()
    with _slow_server(hold) as (old, calls), adopting(old, old, tmp_path, *_to(new)) as proxy:
        clients = [
            threading.Thread(target=proxy.get, args=("/v2/models/same/infer", "POST", _BODY))
            for _ in range(5)
        ]
        for client in clients:
            client.start()
        # All clients wait for the old server, and only for it: nothing was copied yet.
        for _ in clients:
            assert calls.get(timeout=30)
        assert proxy.report()["comparison"]["compared"] == 0
        hold.set()
        for client in clients:
            client.join()
        report = proxy.await_compared(5)
        text = proxy.text_report()
    [model] = report["comparison"]["models"]
    assert (model["compared"], model["differing"]) == (5, 0)
    assert model["latency_ms"]["old"]["p50"] > model["latency_ms"]["new"]["p50"]
    assert "  latency: p50 " in text
    assert "control calls were not compared" in report["control_calls"]["unavailable"]


_BODY = json.dumps(
    {"inputs": [{"name": "INPUT0", "shape": [1, 8], "datatype": "FP32", "data": [1] * 8}]}
).encode()


@contextlib.contextmanager
def _slow_server(hold: threading.Event) -> Iterator[tuple[str, queue.Queue[str]]]:
    """A server whose inferences wait for an event; its address, and the paths of inferences."""
    calls: queue.Queue[str] = queue.Queue()
    output = {"name": "OUTPUT0", "shape": [1, 8], "datatype": "FP32", "data": [2] * 8}
    reply = json.dumps({"model_name": "same", "model_version": "1", "outputs": [output]}).encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.endswith("/infer"):
                calls.put(self.path)
                hold.wait(60)
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

    with http_server(Handler) as address:
        yield address, calls


def test_changes_reach_both_servers(proxy: Adopting, meshes: tuple[Mesh, Mesh]) -> None:
    status, _ = proxy.get("/v2/logging", "POST", b'{"log_verbose_level": 1}')
    assert status == 200
    try:
        for mesh in meshes:
            assert json.loads(mesh.get("/v2/logging")[1])["log_verbose_level"] == 1
        [change] = proxy.report()["changes"]
        assert (change["call"], change["same_outcome"]) == ("POST /v2/logging", True)
    finally:
        proxy.get("/v2/logging", "POST", b'{"log_verbose_level": 0}')


def test_the_check_says_what_would_not_be_served(meshes: tuple[Mesh, Mesh], tmp_path: Path) -> None:
    old, _ = meshes
    e2e_models.save_scaler(tmp_path, "same", 2, "")
    result = subprocess.run(
        [*NEREID, old.http, "--check", "--json", f"--model-repository={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    models = {model["name"]: model for model in json.loads(result.stdout)["models"]}
    assert models["same"]["problems"] == models["same"]["config_differences"] == []
    assert models["repeat"]["problems"] == ["the repository has no such model or version"]


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("localhost:1",), "give either --to, or --model-repository"),
        (("ftp://localhost:1", "--to=b:1"), "expected host:port"),
        (("localhost:1", "--to=b:1", "--rules=y: near"), "'near' is no rule"),
        (("localhost:1", "--to=b:1", "--rules=@/dev/zero"), "more than 16777216 bytes"),
        (("localhost:1", "--to=b:1", "--weight=101"), "from 0 to 100"),
        (("localhost:1", "--to=b:1", "--copies=nan"), "from 0 to 100"),
        (("localhost:1", "--to=b:1", "--copies=few"), "from 0 to 100"),
        (("turn", "1", "--control=/nowhere/adopt.sock"), "no proxy can be reached"),
    ],
)
def test_wrong_usage_is_refused(flags: tuple[str, ...], error: str) -> None:
    result = subprocess.run(
        [*NEREID, *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 2
    assert error in result.stderr
