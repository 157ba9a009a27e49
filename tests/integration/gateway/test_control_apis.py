"""--open-control-apis=false: who may change the server, through both ports."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio
import pytest

from nereid.pb import kserve_pb2
from nereid.services.gateway import exposure
from nereid.services.gateway.settings import GatewaySettings, read
from tests.support.gateway.gateway_http import ask
from tests.support.gateway.gateway_site import gateway_site

SERVICE = "/inference.GRPCInferenceService/"
CHANGES = [
    ("POST", "/v2/repository/models/echo/load"),
    ("POST", "/v2/repository/models/echo/unload"),
    ("POST", "/v2/systemsharedmemory/region/r/register"),
    ("POST", "/v2/cudasharedmemory/unregister"),
    ("GET", "/v2/trace/setting"),
    ("POST", "/v2/models/echo/trace/setting"),
    ("POST", "/v2/logging"),
]
METHODS = {
    "RepositoryModelLoad": kserve_pb2.RepositoryModelLoadRequest(model_name="echo"),
    "RepositoryModelUnload": kserve_pb2.RepositoryModelUnloadRequest(model_name="echo"),
    "SystemSharedMemoryRegister": kserve_pb2.SystemSharedMemoryRegisterRequest(name="r"),
    "TraceSetting": kserve_pb2.TraceSettingRequest(),
    "LogSettings": kserve_pb2.LogSettingsRequest(),
}


async def test_closed_http() -> None:
    async with gateway_site(open_control_apis=False) as site:
        for method, target in CHANGES:
            response = await ask(site, method, target, b"{}")
            assert response.status == 403, target
            assert b"--open-control-apis" in response.body
        for method, target in (("GET", "/v2"), ("POST", "/v2/repository/index")):
            assert (await ask(site, method, target)).status == 200


async def test_closed_grpc() -> None:
    async with (
        gateway_site(open_control_apis=False) as site,
        grpc.aio.insecure_channel(site.grpc) as channel,
    ):
        for method, request in METHODS.items():
            call = channel.unary_unary(SERVICE + method)  # type: ignore[var-annotated]
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(request.SerializeToString(), timeout=5)
            assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "--open-control-apis" in (raised.value.details() or "")
        ready = channel.unary_unary(SERVICE + "ServerReady")  # type: ignore[var-annotated]
        await ready(b"", timeout=5)


async def test_what_is_restricted_needs_its_header_alone() -> None:
    restricted = ("trace:key=k",)
    async with gateway_site(open_control_apis=False, http_restricted_api=restricted) as site:
        refused = await ask(site, "GET", "/v2/trace/setting")
        assert b"expecting header 'key'" in refused.body
        served = await ask(site, "GET", "/v2/trace/setting", key="k")
        assert b"--open-control-apis" not in served.body
        assert b"--open-control-apis" in (await ask(site, "GET", "/v2/logging", key="k")).body


def line(*argv: str, at: dict[str, str | None] | None = None) -> str:
    settings = read(argv, {})
    where = {"http": "0.0.0.0:8000", "grpc": "0.0.0.0:8001", "metrics": "0.0.0.0:8002"}
    return exposure.exposure(settings, where | (at or {}))


def test_the_line_that_says_what_is_open() -> None:
    assert line() == (
        "to any client of 0.0.0.0:8000 and 0.0.0.0:8001: inference, metadata, statistics, model"
        " control, trace settings, log settings; to any client of 0.0.0.0:8002: metrics"
    )
    hardened = line("--hardened", at={"metrics": "127.0.0.1:8002"})
    assert hardened == (
        "to any client of 0.0.0.0:8000 and 0.0.0.0:8001: inference, metadata, statistics; to any"
        " client of 127.0.0.1:8002: metrics"
    )
    # What is restricted on one port alone is seen to be open on the other.
    mixed = line("--http-restricted-api=model-repository,inference:key=k", "--allow-client-shm")
    assert mixed.startswith(
        "to any client of 0.0.0.0:8000: metadata, statistics, trace settings, log settings, shared"
        " memory; to any client of 0.0.0.0:8001: inference, metadata, statistics, model control,"
    )


def test_hardened_and_what_opens_it_again(tmp_path: Path) -> None:
    hardened = read(["--hardened"], {})
    assert hardened.closed_apis("http") == {
        "model-repository",
        "shared-memory",
        "trace",
        "logging",
    }
    assert hardened.metrics_at == "127.0.0.1:8002"
    opened = read(["--hardened", "--open-control-apis=true", "--metrics-address=0.0.0.0"], {})
    assert opened.closed_apis("grpc") == frozenset()
    assert opened.metrics_at == "0.0.0.0:8002"
    assert GatewaySettings().closed_apis("http") == frozenset()
