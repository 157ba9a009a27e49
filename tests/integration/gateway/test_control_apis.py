"""--open-control-apis=false: who may change the server, through both ports."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from nereid_gateway.extras import exposure
from nereid_gateway.settings import GatewaySettings, read
from tests.support.gateway.gateway_http import ask
from tests.support.gateway.gateway_site import gateway_site

SERVICE = "/inference.GRPCInferenceService/"


async def test_what_changes_the_server_is_closed_on_both_ports() -> None:
    async with (
        gateway_site(open_control_apis=False) as site,
        grpc.aio.insecure_channel(site.grpc) as channel,
    ):
        for target, status in (
            ("/v2/repository/models/echo/load", 403),
            ("/v2/systemsharedmemory/region/r/register", 403),
            ("/v2/repository/index", 200),
        ):
            response = await ask(site, "POST", target, b"{}")
            assert response.status == status
            assert (b"--open-control-apis" in response.body) == (status == 403)
        for method, code in (("LogSettings", "PERMISSION_DENIED"), ("ServerReady", "OK")):
            unary: Any = channel.unary_unary(SERVICE + method)
            assert (await unary(b"", timeout=5).code()).name == code


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


def test_hardened_and_what_opens_it_again() -> None:
    hardened = read(["--hardened"], {})
    assert hardened.closed_apis("http") == {"model-repository", "shared-memory", "trace", "logging"}
    assert hardened.metrics_at == "127.0.0.1:8002"
    opened = read(["--hardened", "--open-control-apis=true", "--metrics-address=0.0.0.0"], {})
    assert opened.closed_apis("grpc") == frozenset()
    assert opened.metrics_at == "0.0.0.0:8002"
    assert GatewaySettings().closed_apis("http") == frozenset()
