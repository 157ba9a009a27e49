"""`nereid perf` against a real mesh."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid_perf.distribution import mean_us
from nereid_perf.endpoint import Endpoint, Protocol, TlsSettings
from nereid_perf.output.result_file import read_result
from nereid_perf.server import NotSupportedError, Server, ServerError
from tests.support.mesh.mesh import Mesh, free_port, running, until
from tests.support.models import python_models
from tests.support.peers.certificates import Authority

pytestmark = pytest.mark.slow

_OK, _FAILED, _USAGE, _MISSED, _BOTTLENECK = 0, 1, 2, 3, 4
_COMMAND = (sys.executable, "-c", "from nereid.cli import main; main()", "perf")
_REGIONS = Path("/dev/shm")
# How steady a machine is says nothing of the tool.
_ANY = ("-p", "100", "-s", "1000000", "--warmup-request-count=10")
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
TIMED = ("http", "grpc", "streams")


def _perf(mesh: Mesh, *flags: str) -> tuple[int, str]:
    """Exit code and all that it printed."""
    protocol = flags[flags.index("-i") + 1] if "-i" in flags else "http"
    url = mesh.http if protocol == "http" else mesh.grpc
    return _run("-u", url, *flags)


def _run(*flags: str) -> tuple[int, str]:
    result = subprocess.run(
        [*_COMMAND, *flags], capture_output=True, text=True, timeout=120, check=False
    )
    return result.returncode, result.stdout + result.stderr


# The others are measured by test_responses_say_where_their_time_went.
# A rate on streams is measured of a mock by tests/integration/perf.
@pytest.mark.parametrize(
    "load",
    [
        pytest.param(load, marks=[pytest.mark.nightly] if load == "a rate on streams" else [])
        for load in LOADS
        if load not in TIMED
    ],
)
def test_loads_of_all_kinds(load: str, mesh: Mesh) -> None:
    _measure(mesh, load)


def _measure(mesh: Mesh, load: str, *flags: str) -> None:
    before = mesh.counts("doubler")["success"]
    code, printed = _perf(mesh, "-m", "doubler", *_ANY, *LOADS[load], *flags)
    # Where other tests run as well, the client may lack a CPU.
    assert code in {_OK, _BOTTLENECK}, printed
    assert "Failed" not in printed
    assert "Execution count: " in printed
    assert mesh.counts("doubler")["success"] > before
    assert ("Cancelled" in printed) == ("cancellations" in load)


def test_a_model_that_is_not_there(mesh: Mesh) -> None:
    for protocol in ("http", "grpc"):
        code, printed = _perf(mesh, "-m", "nothing", "-i", protocol)
        assert code == _FAILED
        assert "unknown model: 'nothing'" in printed


def test_an_input_that_varies_needs_its_shape(mesh: Mesh) -> None:
    code, printed = _perf(mesh, "-m", "identity_fp32")
    assert code == _USAGE
    assert "as in --shape INPUT0:1" in printed
    shape = ("--shape", "INPUT0:1000")
    code, printed = _perf(mesh, "-m", "identity_fp32", *shape, "--request-count=20")
    assert code in {_OK, _BOTTLENECK}, printed
    assert "Request count: 20" in printed


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
def test_decoupled_models(decoupled: Mesh, count: int, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"COUNT": [count], "SIZE": [8], "MODE": ["then_end"]}]}))
    result = tmp_path / "result.json"
    flags = ("-m", "repeat", "-i", "grpc", f"--input-data={data}", f"--json={result}")
    code, printed = _perf(decoupled, *flags)
    assert code == _USAGE
    assert "needs -i grpc --streaming" in printed
    more = (*flags, "--streaming", "--request-count=30", "--concurrency-range=5")
    code, printed = _perf(decoupled, *more)
    assert code in {_OK, _BOTTLENECK}, printed
    assert "Request count: 30" in printed
    (server,) = read_result(result).servers
    (measurement,) = server.measurements
    assert (measurement.requests, measurement.responses) == (30, 30 * count)
    assert measurement.latencies.between.total_count == 30 * (count - 1)
    assert measurement.failures == {}
    assert measurement.server[0].requests == 30


def test_several_models_in_proportion(mesh: Mesh, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    flags = ("-m", "doubler=3", "-m", "add_sub=1", "--request-count=400", f"--json={result}")
    code, printed = _perf(mesh, *flags)
    assert code in {_OK, _BOTTLENECK}, printed
    (server,) = read_result(result).servers
    assert server.models == ("doubler", "add_sub")
    counts = {name: each.requests for name, each in server.measurements[0].models.items()}
    assert counts == {"doubler": 300, "add_sub": 100}


def test_a_sweep_writes_what_report_and_compare_read(mesh: Mesh, tmp_path: Path) -> None:
    files = {name: tmp_path / f"result.{name}" for name in ("json", "html", "csv", "png")}
    flags = [f"--{name}={path}" for name, path in files.items()]
    code, printed = _perf(mesh, "-m", "doubler", *_ANY, "--concurrency-range=1,2,4", *flags)
    assert code in {_OK, _BOTTLENECK}, printed
    assert "Knee" in printed
    assert files["csv"].read_text().count("\n") == 4
    assert "<title>" in files["html"].read_text()
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    page = tmp_path / "page.html"
    again = tmp_path / "again.json"
    again.write_bytes(files["json"].read_bytes())
    code, printed = _run("report", str(files["json"]), str(again), f"--html={page}")
    assert code == _OK, printed
    assert "again" in page.read_text()
    code, printed = _run("report", str(again))
    assert "Concurrency: 4, throughput:" in printed
    both = (str(files["json"]), str(again))
    code, printed = _run("compare", *both)
    assert code in {_OK, _BOTTLENECK}, printed
    assert "B to A at Request concurrency 4" in printed
    assert "p99: 1.000" in printed
    code, printed = _run("compare", *both, "--fail-if=p99>0ms")
    assert code in {_MISSED, _BOTTLENECK}, printed
    again.write_text("{}")
    assert _run("compare", *both)[0] == _FAILED


def test_two_servers_in_turns(mesh: Mesh, tmp_path: Path) -> None:
    """Of this one by either name."""
    result = tmp_path / "result.json"
    sides = (mesh.http, f"http://{mesh.http}")
    quick = ("-p", "100", "--rounds=8", "--warmup-request-count=10")
    flags = ("-m", "doubler", *quick, "--live=plain", f"--json={result}")
    code, printed = _run("compare", *sides, *flags)
    assert code in {_OK, _BOTTLENECK}, printed
    assert "A: 1 in flight, measured" in printed
    assert "B to A at Request concurrency 1: 8 pairs of rounds" in printed
    kept = read_result(result)
    assert [each.url for each in kept.servers] == list(sides)
    assert [len(each.measurements) for each in kept.servers] == [8, 8]


@pytest.mark.parametrize(("slo", "is_met"), [("errors=50%,p50=60s", True), ("p50=0.1us", False)])
def test_the_highest_rate_under_an_objective(mesh: Mesh, slo: str, is_met: bool) -> None:
    # As many as can be in flight are no load for anything, so that the search ends soon.
    quick = ("-p", "100", "--warmup-request-count=10")
    flags = ("--max-in-flight=1", "--max-rate-precision=1", "--max-rate-votes=1/1", *quick)
    code, printed = _perf(mesh, "-m", "doubler", "--find-max-rate", f"--slo={slo}", *flags)
    assert code in ({_OK, _BOTTLENECK} if is_met else {_MISSED, _BOTTLENECK}), printed
    assert f"Highest rate under {slo}: " in printed


def test_what_was_measured_before_an_error_is_kept(tmp_path: Path) -> None:
    """The server ends after its first level."""
    mock = [sys.executable, "-m", "nereid_perf.mock", "--http-port=0", "--grpc-port=-1"]
    result = tmp_path / "result.json"
    with subprocess.Popen(mock, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[1]
        flags = ("-m", "any", "-u", url, *_ANY, "--concurrency-range=1:2", "--live=plain")
        argv = [*_COMMAND, *flags, f"--json={result}"]
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as perf:
            assert perf.stdout is not None
            while "1 in flight, measured" not in perf.stdout.readline():
                pass
            server.kill()
            printed, _ = perf.communicate(timeout=60)
    assert perf.returncode == _FAILED
    assert "Ended early: " in printed
    kept = read_result(result)
    assert [each.level.value for each in kept.servers[0].measurements] == [1]
    assert kept.notes


def test_shared_memory_is_given_back(repository: Path, tmp_path: Path) -> None:
    before = {*_REGIONS.glob("nereid-perf-*")}
    with running(repository, tmp_path / "log", "--allow-client-shm=true") as mesh:
        for protocol in ("http", "grpc"):
            flags = ("-m", "doubler", "-i", protocol, "--shared-memory=system", "--batch-size=4")
            code, printed = _perf(mesh, *flags, "--request-count=50", "--workers=2")
            assert code in {_OK, _BOTTLENECK}, printed
            assert "Failed" not in printed
        assert mesh.get("/v2/systemsharedmemory/status")[1] == b"[]"
    assert {*_REGIONS.glob("nereid-perf-*")} <= before


@pytest.mark.parametrize("load", TIMED)
def test_responses_say_where_their_time_went(mesh: Mesh, load: str, tmp_path: Path) -> None:
    kept = tmp_path / "result.json"
    _measure(mesh, load, "--server-timing", f"--json={kept}")
    level = read_result(kept).servers[0].measurements[-1]
    assert {"queue", "inference", "network", "total", "client and wire"} <= {*level.timings}
    assert level.timings["total"].requests == level.requests
    parts = sum(level.timings[each].mean_us for each in ("total", "client and wire"))
    assert parts == pytest.approx(mean_us(level.latencies.service), rel=0.02)


def test_a_trace_is_replayed(mesh: Mesh, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f'{{"at_s": {n / 100}, "model": "doubler"}}\n' for n in range(20)))
    code, printed = _perf(mesh, f"--replay={trace}", "--replay-speed=2")
    assert code in {_OK, _BOTTLENECK}, printed
    assert "Trace" in printed
    assert "Request count: 20" in printed


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
