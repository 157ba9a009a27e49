"""`nereid perf` against a real mesh."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid.pb import kserve_pb2 as pb
from nereid.perf.endpoint import Endpoint, Protocol, TlsSettings
from nereid.perf.measurement import LoadLevel
from nereid.perf.plain_requests import SameSource
from nereid.perf.plan import Plan, Workload
from nereid.perf.request import Request
from nereid.perf.server import NotSupportedError, Server, ServerError
from nereid.perf.session import Session, WindowSettings
from tests.support.mesh.mesh import Mesh, free_port, running, until
from tests.support.models import python_models
from tests.support.peers.certificates import Authority

pytestmark = pytest.mark.slow

_OK, _FAILED, _BOTTLENECK = 0, 1, 4
# How steady a machine is says nothing of the tool.
_ANY = ("-p", "200", "-s", "1000000", "--warmup-request-count=10")
LOADS = {
    "http": ("-i", "http", "--concurrency-range=1:4:3"),
    "http compressed": ("-i", "http", "--compression=gzip", "--concurrency-range=4"),
    "grpc": ("-i", "grpc", "--concurrency-range=20"),
    "grpc compressed": ("-i", "grpc", "--compression=deflate", "--concurrency-range=4"),
    "streams": ("-i", "grpc", "--streaming", "--concurrency-range=12", "--workers=2"),
    "a rate": ("-i", "http", "--request-rate-range=200", "--request-distribution=poisson"),
    "a rate on streams": ("-i", "grpc", "--streaming", "--request-rate-range=200"),
    "cancellations": ("-i", "grpc", "--concurrency-range=8", "--cancel-percent=20"),
    "cancellations on streams": (
        *("-i", "grpc", "--streaming", "--concurrency-range=8", "--cancel-percent=20"),
    ),
    "cancellations over http": ("-i", "http", "--concurrency-range=8", "--cancel-percent=20"),
}


def _perf(mesh: Mesh, *flags: str) -> tuple[int, str]:
    """Exit code and all that it printed."""
    protocol = flags[flags.index("-i") + 1] if "-i" in flags else "http"
    url = mesh.http if protocol == "http" else mesh.grpc
    return _run("-u", url, *flags)


def _run(*flags: str) -> tuple[int, str]:
    argv = [sys.executable, "-c", "from nereid.cli import main; main()", "perf", *flags]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("load", LOADS)
def test_loads_of_all_kinds(load: str, mesh: Mesh) -> None:
    before = mesh.counts("doubler")["success"]
    code, printed = _perf(mesh, "-m", "doubler", *_ANY, *LOADS[load])
    # Where other tests run as well, the client may lack a CPU.
    assert code in {_OK, _BOTTLENECK}, printed
    assert "Failed" not in printed
    assert "doubler 1: " in printed
    assert mesh.counts("doubler")["success"] > before
    assert ("Cancelled" in printed) == ("cancellations" in load)


def test_a_model_that_is_not_there(mesh: Mesh) -> None:
    for protocol in ("http", "grpc"):
        code, printed = _perf(mesh, "-m", "nothing", "-i", protocol)
        assert code == _FAILED
        assert "unknown model: 'nothing'" in printed


def test_an_input_that_varies_needs_its_shape(mesh: Mesh) -> None:
    code, printed = _perf(mesh, "-m", "identity_fp32")
    assert code == _FAILED
    assert "give --shape INPUT0:" in printed
    shape = ("--shape", "INPUT0:1000")
    code, printed = _perf(mesh, "-m", "identity_fp32", *shape, "--request-count=20")
    assert code in {_OK, _BOTTLENECK}, printed
    assert "Requests: 20 in" in printed


def test_a_server_that_is_not_there(mesh: Mesh) -> None:
    code, printed = _perf(mesh, "-m", "doubler", "-u", "127.0.0.1:1")
    assert code == _FAILED
    assert "cannot ask 127.0.0.1:1" in printed


def test_gauges_are_read_from_the_metrics_page(mesh: Mesh) -> None:
    page = f"--metrics-url=127.0.0.1:{mesh.metrics_port}/metrics"
    code, printed = _perf(mesh, "-m", "doubler", *_ANY, "--collect-metrics", page)
    assert code in {_OK, _BOTTLENECK}, printed


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_is_asked_of_a_server(mesh: Mesh, protocol: Protocol) -> None:
    server = Server(Endpoint(protocol, mesh.http if protocol == "http" else mesh.grpc))
    # A model of the repository is broken.
    assert not server.is_ready()
    assert "statistics" in server.extensions()
    metadata = server.metadata("doubler")
    assert metadata["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, 8]}]
    config = server.config("doubler", "1")
    assert config is not None
    assert config["max_batch_size"] == 16
    assert config["input"][0]["dims"] == [8]
    statistics = (server.statistics("doubler") or [{}])[0]
    assert statistics["version"] == "1"
    assert len(server.statistics() or ()) > 1
    with pytest.raises(ServerError, match="nothing"):
        server.metadata("nothing")
    with pytest.raises(NotSupportedError, match="--allow-client-shm"):
        server.register_system_shared_memory("region", "/none", 10)
    server.unregister_system_shared_memory("region")


def test_both_protocols_say_the_same(mesh: Mesh) -> None:
    http = Server(Endpoint("http", mesh.http))
    grpc = Server(Endpoint("grpc", mesh.grpc))
    assert http.metadata("add_sub") == grpc.metadata("add_sub")
    assert http.config("add_sub") == grpc.config("add_sub")


@pytest.fixture(scope="module")
def decoupled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("repository")
    python_models.save(root, "repeat", python_models.REPEAT, "repeat")
    with running(root, tmp_path_factory.mktemp("mesh") / "log") as mesh:
        yield mesh


@pytest.mark.parametrize("count", [1, 3])
def test_decoupled_models(decoupled: Mesh, count: int) -> None:
    message = pb.ModelInferRequest(model_name="repeat")
    for name, number in (("COUNT", count), ("SIZE", 8)):
        message.inputs.add(name=name, datatype="INT32", shape=[1])
        message.raw_input_contents.append(number.to_bytes(4, "little"))
    message.inputs.add(name="MODE", datatype="BYTES", shape=[1])
    message.raw_input_contents.append((8).to_bytes(4, "little") + b"then_end")
    plan = Plan(
        endpoint=Endpoint("grpc", decoupled.grpc),
        workloads=(Workload("repeat"),),
        make_source=SameSource((Request(message.SerializeToString()),)),
        streaming=True,
        decoupled=True,
    )
    windows = WindowSettings(total_requests=30, warm_up=0)
    with Session(plan, windows, server=Server(plan.endpoint)) as session:
        measurement = session.measure(LoadLevel("concurrency", 5))
    assert (measurement.requests, measurement.responses) == (30, 30 * count)
    assert measurement.latencies.between.total_count == 30 * (count - 1)
    assert measurement.failures == {}
    assert measurement.server[0].requests == 30


def test_tls(repository: Path, tmp_path: Path) -> None:
    identity = (authority := Authority(tmp_path)).identity()
    http_port, grpc_port, metrics_port = (free_port() for _ in range(3))
    argv = [
        *(sys.executable, "-c", "from nereid.cli import main; main()", "serve"),
        *(f"--model-repository={repository}", f"--metrics-port={metrics_port}"),
        *(f"--http-port={http_port}", f"--grpc-port={grpc_port}"),
        *("--http-use-ssl=true", f"--http-server-cert={identity.cert}"),
        *(f"--http-server-key={identity.key}", "--grpc-use-ssl=true"),
        *(f"--grpc-server-cert={identity.cert}", f"--grpc-server-key={identity.key}"),
    ]
    tls = TlsSettings(authority.root)
    servers = [
        Server(Endpoint("http", f"127.0.0.1:{http_port}", tls)),
        Server(Endpoint("grpc", f"127.0.0.1:{grpc_port}", tls)),
    ]

    def serves(server: Server) -> bool:
        with contextlib.suppress(ServerError):
            return bool(server.metadata("doubler"))
        return False

    root = f"--ssl-grpc-root-certifications-file={authority.root}"
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(argv, stdout=log) as mesh:
        try:
            for server in servers:
                until(lambda server=server: serves(server), "the mesh")  # type: ignore[misc]
                endpoint = server.endpoint
                flags = ("-i", endpoint.protocol, "-u", endpoint.address, "--ssl", root)
                code, printed = _run("-m", "doubler", "--request-count=20", *flags)
                assert code in {_OK, _BOTTLENECK}, printed
        finally:
            mesh.terminate()
            mesh.wait(45)
