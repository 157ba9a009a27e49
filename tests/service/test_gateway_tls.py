"""TLS on the gRPC port, with and without clients' certificates, on both edge engines."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from nereid.pb import kserve_pb2
from services.gateway.settings import GatewaySettings
from tests.service.gateway_site import gateway_site

LIVE = "/inference.GRPCInferenceService/ServerLive"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    chain, key = folder / "chain.pem", folder / "key.pem"
    options = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    options += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run(
            ["openssl", *options, "-keyout", key, "-out", chain], check=True, capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("openssl's command line is not here")
    return chain, key


@pytest.mark.parametrize("engine", ["nereid", "grpcio"])
@pytest.mark.parametrize("mutual", [False, True])
async def test_tls(certificate: tuple[Path, Path], engine: str, mutual: bool) -> None:
    chain, key = certificate
    flags: dict[str, Any] = {
        "grpc_engine": engine,
        "grpc_use_ssl": True,
        "grpc_use_ssl_mutual": mutual,
        "grpc_server_cert": str(chain),
        "grpc_server_key": str(key),
        "grpc_root_cert": str(chain),
    }
    assert GatewaySettings(**flags).faults() == []
    async with gateway_site(**flags) as site:
        known = grpc.ssl_channel_credentials(
            await asyncio.to_thread(chain.read_bytes),
            await asyncio.to_thread(key.read_bytes),
            await asyncio.to_thread(chain.read_bytes),
        )
        stranger = grpc.ssl_channel_credentials(await asyncio.to_thread(chain.read_bytes))
        for credentials, welcome in ((known, True), (stranger, not mutual)):
            async with grpc.aio.secure_channel(site.grpc, credentials) as channel:
                method: Any = channel.unary_unary(LIVE)
                if welcome:
                    answer = await method(b"", timeout=5)
                    assert kserve_pb2.ServerLiveResponse.FromString(answer).live
                else:
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await method(b"", timeout=5)
                    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
