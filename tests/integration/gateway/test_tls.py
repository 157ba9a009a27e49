"""TLS and unix sockets on the gateway's ports, with the clients that users have."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import shutil
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from nereid_gateway.settings import GatewaySettings
from tests.support.gateway.gateway_site import GatewaySite, gateway_site
from tests.support.peers.certificates import Authority, Identity

ARRAY = np.arange(100_000, dtype=np.float32).reshape(2, -1)
LIMIT_S = 20


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def tls_flags(identity: Identity, root: str, *, mutual: bool) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    for front in ("http", "grpc"):
        flags |= {
            f"{front}_use_ssl{'_mutual' if mutual else ''}": True,
            f"{front}_server_cert": identity.cert,
            f"{front}_server_key": identity.key,
            f"{front}_root_cert": root,
        }
    assert GatewaySettings(**flags).errors() == []
    return flags


def tensors(client: Any) -> list[Any]:
    tensor = client.InferInput("INPUT0", list(ARRAY.shape), "FP32")
    tensor.set_data_from_numpy(ARRAY)
    return [tensor]


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.wait_for(asyncio.to_thread(work), LIMIT_S)


async def infer_with_both(site: GatewaySite, root: str, client: Identity | None) -> None:
    """Call with NVIDIA's clients of both protocols, each of which must get its response."""
    files = {"certfile": client.cert, "keyfile": client.key} if client else {}
    pem = {"private_key": client.key, "certificate_chain": client.cert} if client else {}
    http_tls: dict[str, Any] = {"ssl": True, "ssl_options": {"ca_certs": root, **files}}
    grpc_tls: dict[str, Any] = {"ssl": True, "root_certificates": root, **pem}

    def infer(module: Any, address: str, tls: dict[str, Any]) -> Any:
        with module.InferenceServerClient(address, **tls) as asker:
            return asker.infer("echo", tensors(module)).as_numpy("OUTPUT0")

    for module, address, tls in (
        (tritonclient.http, site.http, http_tls),
        (tritonclient.grpc, site.grpc, grpc_tls),
    ):
        found = await asyncio.wait_for(asyncio.to_thread(infer, module, address, tls), LIMIT_S)
        np.testing.assert_array_equal(found, ARRAY)


async def curl(*arguments: str) -> tuple[int, str]:
    """curl's exit code, and the status with the protocol or what went wrong."""
    program = shutil.which("curl")
    if program is None:
        pytest.skip("needs curl")
    process = await asyncio.create_subprocess_exec(
        program,
        *("-sS", "--max-time", str(LIMIT_S), "-o", "/dev/null"),
        *("-w", "%{http_code} %{http_version} %{ssl_verify_result}", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


@pytest.mark.parametrize("mutual", [False, True])
async def test_tls(ours: Authority, mutual: bool) -> None:
    client = ours.identity("client", files="client")
    flags = tls_flags(ours.identity(), ours.root, mutual=mutual)
    async with gateway_site(**flags) as site:
        await infer_with_both(site, ours.root, client if mutual else None)
        live = f"https://{site.http}/v2/health/live"
        code, text = await curl("--cacert", ours.root, live)
        if not mutual:
            assert (code, text) == (0, "200 1.1 0")
            return
        assert code != 0, text
        shown = ("--cert", client.cert, "--key", client.key)
        assert await curl("--cacert", ours.root, *shown, live) == (0, "200 1.1 0")

        def strange() -> None:
            with tritonclient.grpc.InferenceServerClient(
                site.grpc, ssl=True, root_certificates=ours.root
            ) as client:
                client.is_server_live(client_timeout=5)

        with pytest.raises(InferenceServerException, match=r"UNAVAILABLE"):
            await in_thread(strange)


async def test_http_in_clear_and_odd_clients_on_an_https_port(ours: Authority) -> None:
    flags = tls_flags(ours.identity(), ours.root, mutual=False)
    async with gateway_site(**flags) as site:
        assert (await curl(f"http://{site.http}/v2/health/live"))[0] != 0
        # curl would take HTTP/2 if it were offered.
        live = f"https://{site.http}/v2/health/live"
        assert await curl("--http2", "--cacert", ours.root, live) == (0, "200 1.1 0")
        host, _, port = site.http.rpartition(":")
        # One that stalls, and one that sends garbage.
        async with contextlib.AsyncExitStack() as stack:
            for first in (b"\x16\x03\x01", b"\xff" * 100):
                _, writer = await asyncio.open_connection(host, int(port))
                stack.callback(writer.close)
                writer.write(first)
            assert await curl("--cacert", ours.root, live) == (0, "200 1.1 0")


async def test_refusals_are_sent_over_tls(ours: Authority) -> None:
    """The refused body is still on its way then, and TLS has no half-closed connections."""
    flags = tls_flags(ours.identity(), ours.root, mutual=False)
    async with gateway_site(http_max_input_size=1000, **flags) as site:

        def work() -> tuple[int, bytes]:
            context = ssl.create_default_context(cafile=ours.root)
            connection = http.client.HTTPSConnection(site.http, timeout=LIMIT_S, context=context)
            try:
                connection.request("POST", "/v2/models/echo/infer", bytes(500_000))
                response = connection.getresponse()
                return response.status, response.read()
            finally:
                connection.close()

        status, text = await in_thread(work)
        assert status == 400
        assert b"exceeds the maximum allowed input size" in text


async def test_a_draining_gateway_does_not_wait_for_handshakes(ours: Authority) -> None:
    flags = tls_flags(ours.identity(), ours.root, mutual=False)
    async with contextlib.AsyncExitStack() as stack:
        site = await stack.enter_async_context(gateway_site(**flags))
        for address in (site.http, site.grpc):
            host, _, port = address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            writer.write(b"\x16\x03\x01\x02\x00\x01")
        assert (await curl("-k", f"https://{site.http}/v2/health/live"))[0] == 0
        async with asyncio.timeout(5):
            await site.service.drain(60)


async def test_unix_sockets(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("http", "grpc", "metrics")]
    flags = {f"{path.name}_address": f"unix:{path}" for path in paths}
    # What a killed gateway left behind.
    for path in paths:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    async with gateway_site(**flags) as site:
        assert (site.http, site.grpc) == (f"unix:{paths[0]}", f"unix:{paths[1]}")
        assert all(stat.S_ISSOCK(path.stat().st_mode) for path in paths)

        def ask() -> Any:
            with tritonclient.grpc.InferenceServerClient(site.grpc) as client:
                return client.infer("echo", tensors(tritonclient.grpc)).as_numpy("OUTPUT0")

        np.testing.assert_array_equal(await in_thread(ask), ARRAY)
        for path, target in ((paths[0], "v2/health/live"), (paths[2], "metrics")):
            asked = await curl("--unix-socket", str(path), f"http://localhost/{target}")
            assert asked == (0, "200 1.1 0")
        # A second gateway does not take them away.
        for path in paths:
            name = path.name
            free = {f"{other.name}_address": "127.0.0.1" for other in paths}
            with pytest.raises(OSError, match="in use"):
                async with gateway_site(**{**free, f"{name}_address": f"unix:{path}"}):
                    pass
            assert path.exists()
    assert not any(path.exists() for path in paths)


def test_metrics_are_private_where_http_is() -> None:
    assert GatewaySettings(http_address="unix:/s").metrics_at == "127.0.0.1:8002"
    assert GatewaySettings(http_address="::1").metrics_at == "[::1]:8002"
    assert GatewaySettings(metrics_address="unix:/m").metrics_at == "unix:/m"
