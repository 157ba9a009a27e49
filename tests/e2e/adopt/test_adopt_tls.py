"""`nereid adopt` with TLS to its clients and to both servers."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.support.mesh.adopting import NEREID, Adopting, adopting
from tests.support.mesh.mesh import Mesh, until
from tests.support.models import e2e_models
from tests.support.peers.certificates import Authority, Identity

pytestmark = pytest.mark.slow

_X = np.arange(8, dtype=np.float32).reshape(1, 8)


def _tls_flags(identity: Identity, root: str = "") -> list[str]:
    """Flags of the gateway and of the proxy; with a root, clients need a certificate."""
    flags = []
    for protocol in ("http", "grpc"):
        files = {"server-cert": identity.cert, "server-key": identity.key}
        flags += [f"--{protocol}-{name}={path}" for name, path in files.items()]
        flags.append(f"--{protocol}-use-ssl=true")
        if root:
            flags += [f"--{protocol}-use-ssl-mutual=true", f"--{protocol}-root-cert={root}"]
    return flags


class _Site:
    """Two meshes with TLS, which want certificates, and the flags for a proxy before them."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.servers, self.clients = (Authority(folder / name) for name in ("servers", "clients"))
        served, self.client = self.servers.identity(), self.clients.identity(files="client")
        self.meshes = []
        for factor in (2, 3):
            repository = folder / f"models{factor}"
            e2e_models.save_scaler(repository, "scaled", factor, "")
            flags = _tls_flags(served, self.clients.root)
            mesh = Mesh(repository, folder / f"mesh{factor}.log", "--executors=1", *flags)
            stack.callback(mesh.terminate)
            self.meshes.append(mesh)
        for mesh in self.meshes:
            until(lambda log=mesh.log: "first request" in log.read_text(), "the mesh")  # type: ignore[misc]
        old, new = self.meshes
        self.old = f"https://{old.http}", f"grpcs://{old.grpc}"
        self.flags = [
            *(
                f"--to=https://{new.http}",
                f"--to-grpc={new.grpc}",
                f"--ca-file={self.servers.root}",
            ),
            *(f"--cert-file={self.client.cert}", f"--key-file={self.client.key}"),
        ]
        self.own_flags = _tls_flags(served)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Site]:
    with contextlib.ExitStack() as stack:
        yield _Site(tmp_path_factory.mktemp("tls"), stack)


def _infer(proxy: Adopting, root: str) -> list[list[float]]:
    """The first numbers of the responses over HTTP and gRPC."""
    options = {"ca_certs": root}
    http = tritonclient.http.InferenceServerClient(proxy.http, ssl=True, ssl_options=options)
    credentials = grpc.ssl_channel_credentials(Path(root).read_bytes())
    grpc_client = tritonclient.grpc.InferenceServerClient(proxy.grpc, creds=credentials)
    found = []
    for module, client in ((tritonclient.http, http), (tritonclient.grpc, grpc_client)):
        tensor = module.InferInput("INPUT0", [1, 8], "FP32")
        tensor.set_data_from_numpy(_X)
        found.append(client.infer("scaled", [tensor]).as_numpy("OUTPUT0")[0, :2].tolist())
        client.close()
    return found


def test_clients_the_old_server_and_the_copies_have_tls(site: _Site, tmp_path: Path) -> None:
    with adopting(*site.old, tmp_path, *site.flags, *site.own_flags) as proxy:
        assert _infer(proxy, site.servers.root) == [[0, 2]] * 2
        report = proxy.await_compared(2)
        comparison = report["comparison"]
        assert (comparison["compared"], comparison["differing"]) == (2, 2), report
        proxy.turn(100)
        assert _infer(proxy, site.servers.root) == [[0, 3]] * 2
        assert proxy.report()["failed_over"] == 0


def test_a_server_of_another_authority_is_not_trusted(site: _Site, tmp_path: Path) -> None:
    flags = [flag for flag in site.flags if not flag.startswith("--ca-file")]
    flags.append(f"--ca-file={site.clients.root}")
    with adopting(*site.old, tmp_path, *flags) as proxy:
        status, body = proxy.get("/v2")
        assert status == 502
        assert b"CERTIFICATE_VERIFY_FAILED" in body
        assert proxy.report()["failed"] == 1


def test_the_check_asks_a_server_with_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    e2e_models.save_scaler(tmp_path / "models", "scaled", 2, "")
    flags = _tls_flags(authority.identity())
    mesh = Mesh(tmp_path / "models", tmp_path / "mesh.log", "--executors=1", *flags)
    try:
        until(lambda: "first request" in mesh.log.read_text(), "the mesh")
        result = subprocess.run(
            [*NEREID, f"https://{mesh.http}", f"--ca-file={authority.root}", "--check", "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        mesh.terminate()
    assert result.returncode == 0, result.stderr
    assert [model["name"] for model in json.loads(result.stdout)["models"]] == ["scaled"]


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--http-use-ssl",), "--http-server-cert is required with TLS"),
        (
            ("--grpc-use-ssl-mutual", "--grpc-server-cert=/c", "--grpc-server-key=/k"),
            "--grpc-root-cert is required with TLS",
        ),
        (
            ("--http-use-ssl", "--http-server-cert=/nowhere", "--http-server-key=/nowhere"),
            "No such file",
        ),
        (("--grpc=http://localhost:1",), "expected host:port, grpc://host:port or grpcs://"),
        (("--ca-file=/nowhere", "--grpc=grpcs://b:1"), "No such file"),
    ],
)
def test_wrong_usage_is_refused(flags: tuple[str, ...], error: str) -> None:
    result = subprocess.run(
        [*NEREID, "localhost:1", "--to=b:1", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert error in result.stderr
