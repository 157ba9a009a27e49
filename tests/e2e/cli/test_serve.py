"""`nereid serve`: errors in one line and exit code 2 before anything starts, help, start, end."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tritonclient import http as httpclient

from nereid.core.files.temporary_directories import OVERRIDE, SERVE
from nereid.version import is_compiled
from nereid_mesh.serve.settings import COMMON_FLAGS
from tests.support.mesh.mesh import Mesh, free_port, running, until
from tests.support.models.e2e_models import save_scaler
from tests.support.models.scaler import CONFIG

pytestmark = pytest.mark.slow


NEREID = str(Path(sys.executable).with_name("nereid"))


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)


def serve(*flags: str) -> subprocess.CompletedProcess[str]:
    return run(NEREID, "serve", *flags)


def assert_refused(result: subprocess.CompletedProcess[str], *texts: str) -> None:
    assert result.returncode == 2
    lines = result.stderr.splitlines()
    assert len(lines) == len(texts), result.stderr
    for line, text in zip(lines, texts, strict=True):
        assert text in line


@pytest.mark.parametrize("front", ["http", "grpc", "metrics"])
def test_a_port_in_use(repository: Path, front: str) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = [
            f"--{which}-port={free_port()}"
            for which in ("http", "grpc", "metrics")
            if which != front
        ]
        result = serve(f"--model-repository={repository}", f"--{front}-port={port}", *flags)
    assert_refused(result, f"cannot listen on 0.0.0.0:{port}")
    assert f"; --{front}-port=N takes another (0: a free one)" in result.stderr


def test_too_few_descriptors(repository: Path) -> None:
    argv = shlex.join([NEREID, "serve", f"--model-repository={repository}"])
    result = run("sh", "-c", f"ulimit -n 128 && exec {argv}")
    assert_refused(result, "may open 128 files (ulimit -Hn), and needs at least 256")


def test_usage_without_a_command_and_with_an_unknown_one() -> None:
    result = run(NEREID)
    assert (result.returncode, "serve" in result.stdout) == (2, True)
    result = run(NEREID, "serv")
    assert (result.returncode, "unknown command 'serv'" in result.stderr) == (2, True)


def test_help_shows_the_common_flags() -> None:
    result = serve("--help")
    assert result.returncode == 0
    assert "--model-repository" in result.stdout
    assert "--executors" in result.stdout
    assert "--http-max-pipelined" not in result.stdout
    assert len(result.stdout.splitlines()) < 80
    # The mesh's port, rather than a service's.
    port = "the metrics port; 0 takes a free one (default: 8002)"
    assert port in " ".join(result.stdout.split())


def test_help_into_a_pipe_that_nobody_reads() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe:
        done = subprocess.run(
            [NEREID, "serve", "--help"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_all_flags_are_shown_on_request() -> None:
    result = serve("--help-all")
    assert result.returncode == 0
    for flag in COMMON_FLAGS:
        assert f"--{flag.replace('_', '-')} " in result.stdout
    assert "--http-max-pipelined" in result.stdout
    assert "--pinned-memory-pool-byte-size" in result.stdout


def test_the_version() -> None:
    result = run(NEREID, "--version")
    assert result.returncode == 0
    assert re.fullmatch(r"nereid \d+\.\d+.*\n", result.stdout)
    assert result.stdout.endswith("(compiled)\n") == is_compiled()


def test_a_start_script_for_triton(repository: Path, tmp_path: Path) -> None:
    log_file = tmp_path / "triton.log"
    flags = (
        f"--log-file={log_file} --log-verbose=1 --reuse-http-port=true --reuse-grpc-port=true"
        " --backend-config=default-max-batch-size=4 --backend-directory=/opt/tritonserver/backends"
        " --pinned-memory-pool-byte-size=268435456 --rate-limit=off --metrics-interval-ms=500.0"
        " --http-thread-count=4 --response-cache-byte-size=1048576 --strict-model-config=false"
    ).split()
    with running(repository, tmp_path / "log", *flags) as mesh:
        with httpclient.InferenceServerClient(mesh.http) as client:
            assert client.get_log_settings()["log_file"] == str(log_file)
        assert "nv_cache_num_entries 0" in mesh.metrics()
        until(
            lambda: {" nereid_executor", " nereid_gateway"} <= _loggers(log_file),
            "lines",
        )
        form = "compiled" if is_compiled() else "pure"
        assert f"started: modules={form}\n" in log_file.read_text()
        output = (tmp_path / "log").read_text()
        assert "to no effect: --pinned-memory-pool-byte-size" in output
        assert not _loggers(tmp_path / "log")
        # Shared ports may be opened a second time; the last of equal flags counts.
        ports = [f"--http-port={mesh.http_port}", f"--grpc-port={mesh.grpc_port}"]
        other = Mesh(repository, tmp_path / "other", *flags, *ports)
        try:
            until(lambda: _linked(other), "a second mesh at the same ports")
        finally:
            assert other.terminate() == 0


def _linked(mesh: Mesh) -> bool:
    with contextlib.suppress(OSError):
        return "nereid_gateway_linked 1\n" in mesh.metrics()
    return False


def _loggers(log: Path) -> set[str]:
    """Which packages have written lines there."""
    return set(re.findall(r" nereid_\w+", log.read_text()))


def test_the_children_may_open_all_the_files_that_the_system_allows(mesh: Mesh) -> None:
    (pid,) = mesh.children("nereid_mesh.serve.joined")
    limits = Path(f"/proc/{pid}/limits").read_text()
    line = next(line for line in limits.splitlines() if line.startswith("Max open files"))
    soft, hard = line.split()[3:5]
    assert soft == hard


def test_a_missing_package_is_named(repository: Path) -> None:
    # As if httptools were not installed.
    code = "import sys; sys.modules['httptools'] = None; import nereid.cli; nereid.cli.main()"
    argv = [sys.executable, "-c", code, "serve", f"--model-repository={repository}"]
    assert_refused(run(*argv), "no module of httptools: pip install")


def test_a_missing_certificate_is_named(repository: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.touch()
    flags = ("--http-use-ssl=true", "--http-server-cert=/no/such.pem", f"--http-server-key={key}")
    assert_refused(serve(f"--model-repository={repository}", *flags), "/no/such.pem")


def test_a_quiet_end(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path / "log") as mesh:
        mesh.greeting()
        assert mesh.terminate() == 0
    output = mesh.log.read_text()
    # Executors outlive their scheduler by a moment, which must not be logged as a warning.
    assert "is gone" not in output
    assert "connection lost" not in output
    assert "requests wait" not in output
    assert "finishing what was accepted" in output


def test_a_signal_while_nothing_runs_yet_leaves_nothing_behind(
    repository: Path, tmp_path: Path
) -> None:
    argv = [NEREID, "serve", f"--model-repository={repository}"]
    process = subprocess.Popen(argv, env=os.environ | {"TMPDIR": str(tmp_path)})
    # Not tempfile's own file, by which it finds out whether it may write there.
    until(lambda: list(tmp_path.glob(f"{SERVE}*")), "the runtime directory")
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_killed_mesh_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Short names: a socket's path may have 107 bytes.
    repository, temporary = tmp_path / "models", tmp_path / "t"
    save_scaler(repository, "scaler", 2, CONFIG)
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    mesh = Mesh(repository, tmp_path / "log", "--model-control-mode=explicit", "--load-model=*")
    mesh.await_settled()
    tensor = {"data_type": "TYPE_FP32", "dims": [8]}
    override = {
        "backend": "onnxruntime",
        "max_batch_size": 5,
        "input": [tensor | {"name": "INPUT0"}],
        "output": [tensor | {"name": "OUTPUT0"}],
    }
    files = {"file:1/model.onnx": (repository / "scaler/1/model.onnx").read_bytes()}
    with httpclient.InferenceServerClient(mesh.http) as client:
        client.load_model("scaler", config=json.dumps(override), files=files)
    children = mesh.children("-m")
    left = {*temporary.iterdir()}
    assert {each.name[:-8] for each in left} == {SERVE, OVERRIDE}
    mesh.process.kill()
    mesh.process.wait()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "all to end")
    with running(repository, tmp_path / "log"):
        until(lambda: not left & {*temporary.iterdir()}, "what was left to be removed")
    assert list(temporary.iterdir()) == []
    # Segments have no names; other tests' processes have objects there.
    assert not [*Path("/dev/shm").glob("nereid*")]


def test_systemd_is_notified_of_readiness_and_the_end(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        mesh = Mesh(repository, tmp_path / "log", "--executors=1")
        try:
            assert receiver.recv(100) == b"READY=1"
            states = {entry["state"] for entry in mesh.versions()}
            assert "READY" in states
            assert "LOADING" not in states
        finally:
            assert mesh.terminate() == 0
        assert receiver.recv(100) == b"STOPPING=1"
