"""The mesh over TLS between machines, and `nereid serve` over TLS and unix sockets."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

import pytest
import tritonclient.grpc

from tests.support.mesh.mesh import ask, free_port, until
from tests.support.mesh.separate_services import ready, service
from tests.support.models.e2e_models import save_multiplier
from tests.support.peers.certificates import Authority, Identity

pytestmark = pytest.mark.slow

CONFIG = 'backend: "onnxruntime"\nresponse_cache { enable: true }\n'


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    save_multiplier(tmp_path / "models", "triple", 3, CONFIG)
    return tmp_path / "models"


def mesh_flags(identity: Identity | None, root: str, name: str = "") -> list[str]:
    flags = [f"--mesh-tls-root={root}"]
    if identity is not None:
        flags += [f"--mesh-tls-cert={identity.cert}", f"--mesh-tls-key={identity.key}"]
    return [*flags, f"--mesh-tls-server-name={name}"] if name else flags


def infer(port: int, value: int) -> object:
    tensor = {"name": "I", "shape": [1], "datatype": "INT64", "data": [value]}
    body = json.dumps({"inputs": [tensor]}).encode()
    status, text = ask(f"127.0.0.1:{port}", "/v2/models/triple/infer", "POST", body)
    assert status == 200, text
    return json.loads(text)["outputs"][0]["data"][0]


def hits(port: int) -> int:
    _, text = ask(f"127.0.0.1:{port}", "/v2/models/triple/stats")
    return int(json.loads(text)["model_stats"][0]["inference_stats"]["cache_hit"].get("count", 0))


def test_services_that_show_each_other_certificates(
    ours: Authority, models: Path, tmp_path: Path
) -> None:
    # A certificate may name several roles.
    names = {"server": ("scheduler.test", "mesh.test"), "client": ("gateway.test", "executor.test")}
    served = ours.identity(*names["server"], files="server")
    client = ours.identity(*names["client"], files="client")
    stranger = Authority(tmp_path / "theirs").identity(*names["client"], files="client")
    scheduler, cache = (f"127.0.0.1:{free_port()}" for _ in range(2))
    http_port = free_port()
    dial = f"--scheduler-address={scheduler}"
    both = mesh_flags(served, ours.root, "mesh.test")
    known = mesh_flags(client, ours.root, "mesh.test")
    logs = {name: tmp_path / f"{name}.log" for name in ("scheduler", "cache", "none", "stranger")}
    with contextlib.ExitStack() as stack:

        def start(kind: str, log: Path, *flags: str) -> None:
            stack.enter_context(service(kind, log, *flags))

        repository = f"--model-repository={models}"
        start("cache", logs["cache"], f"--cache-listen={cache}", "--cache-config=local,size=99999",
              *both)  # fmt: skip
        start("scheduler", logs["scheduler"], dial, repository, f"--cache-address={cache}",
              "--cache-timeout-ms=10000", *both)  # fmt: skip
        ports = [f"--http-port={http_port}", "--grpc-port=0", "--metrics-port=0"]
        start("gateway", tmp_path / "gateway.log", dial, *ports, *known)
        executor = tmp_path / "executor.log"
        with service("executor", executor, dial, "--gpus=none", *known):
            until(lambda: ready(http_port, "triple"), "the model")
            assert infer(http_port, 5) == 15
            # The cache is reached by now, or soon.
            until(lambda: infer(http_port, 6) == 18 and hits(http_port) > 0, "a hit")
            # Who is refused says so, and so does the scheduler.
            start("executor", logs["none"], dial, "--gpus=none",
                  *mesh_flags(None, ours.root, "mesh.test"))  # fmt: skip
            start("executor", logs["stranger"], dial, "--gpus=none",
                  *mesh_flags(stranger, ours.root, "mesh.test"))  # fmt: skip
            for log in ("none", "stranger"):
                reported = "cannot be joined: .*refused our certificate"
                until(lambda log=log, reported=reported: _matches(logs[log], reported), reported)  # type: ignore[misc]
            for why in ("peer did not return a certificate", "unable to get local issuer"):
                reported = f"{scheduler} refused the TLS connection of 127.0.0.1:.*{why}"
                until(lambda reported=reported: _matches(logs["scheduler"], reported), reported)  # type: ignore[misc]
            assert infer(http_port, 7) == 21
        # New files on both sides, and no process of those that serve starts anew.
        for files, named in names.items():
            ours.identity(*named, files=files)
        with service("executor", executor, dial, "--gpus=none", *known):
            until(lambda: ready(http_port, "triple"), "the model")
            assert infer(http_port, 8) == 24
        until(lambda: _matches(logs["scheduler"], "TLS files were read again"), "the new files")


def _matches(log: Path, pattern: str) -> bool:
    return re.search(pattern, log.read_text()) is not None


@contextlib.contextmanager
def serve(models: Path, log: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    nereid = Path(sys.executable).with_name("nereid")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(nereid), "serve", f"--model-repository={models}", *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            assert process.wait(45) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("how", ["unix", "https"])
def test_serve_on_unix_sockets_and_over_https(
    ours: Authority, models: Path, tmp_path: Path, how: str
) -> None:
    http_port, identity = free_port(), ours.identity()
    flags = [f"--grpc-address=unix:{tmp_path}/g", f"--metrics-address=unix:{tmp_path}/m"]
    flags += ["--gpus=none"]
    if how == "unix":
        flags.append(f"--http-address=unix:{tmp_path}/h")
        greeting = f"curl --unix-socket {tmp_path}/h http://localhost/v2"
    else:
        flags += [f"--http-port={http_port}", f"--http-server-cert={identity.cert}"]
        flags += [f"--http-server-key={identity.key}", "--http-use-ssl=true"]
        greeting = f"curl https://localhost:{http_port}/v2/models/triple/infer"
    log = tmp_path / "log"

    def connection() -> HTTPConnection:
        if how == "unix":
            made = HTTPConnection("localhost")
            made.sock = socket.socket(socket.AF_UNIX)
            # Not yet there: the request will fail.
            made.sock.connect_ex(f"{tmp_path}/h")
            return made
        context = ssl.create_default_context(cafile=ours.root)
        return HTTPSConnection(f"localhost:{http_port}", context=context)

    def is_ready() -> bool:
        with contextlib.suppress(OSError, HTTPException), contextlib.closing(connection()) as made:
            made.request("GET", "/v2/health/ready")
            return made.getresponse().status == 200
        return False

    with serve(models, log, *flags):
        until(is_ready, "the mesh")
        until(lambda: greeting in log.read_text(), "the greeting")
        with tritonclient.grpc.InferenceServerClient(f"unix:{tmp_path}/g") as client:
            assert client.is_server_ready()
    assert not (tmp_path / "g").exists()
    assert not (tmp_path / "m").exists()
