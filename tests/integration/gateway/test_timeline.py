"""Who may have the timeline, over HTTP, and what a gateway gathers on its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nereid.timeline import PATH
from nereid.timeline.records import GatewayRequest
from nereid.timeline.wire import read_timeline
from nereid_gateway.guards.auth.api_key import make_key
from tests.support.gateway.auth_config import HEALTH_FOR_ALL, key_entry
from tests.support.gateway.gateway_http import BODY, INFER
from tests.support.gateway.gateway_site import GatewaySite, gateway_site
from tests.support.mesh import mesh

FULL, TRACER, NARROW, CALLER = make_key(), make_key(), make_key(), make_key()
CONFIG = (
    HEALTH_FOR_ALL
    + key_entry("full", FULL, "all")
    + key_entry("tracer", TRACER, "trace")
    + key_entry("narrow", NARROW, "all", more='models = ["ech?"]')
    + key_entry("caller", CALLER, "inference", "metadata")
)


async def ask(site: GatewaySite, *request: Any, **options: Any) -> tuple[int, bytes]:
    return await asyncio.to_thread(mesh.ask, site.http, *request, **options)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": CALLER}, 403),
        # It shows requests to all models.
        ({"x-api-key": NARROW}, 403),
        ({"x-api-key": TRACER}, 200),
        ({"x-api-key": FULL}, 200),
    ],
)
async def test_credentials(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    config = tmp_path / "auth.toml"
    config.write_text(CONFIG)
    async with gateway_site(auth_config=str(config)) as site:
        got, body = await ask(site, PATH, headers=headers)
        assert got == status
        if status == 403:
            assert b"trace" in body


async def test_it_is_restricted_and_closed_as_trace_settings_are() -> None:
    async with gateway_site(http_restricted_api=("trace:key=secret",)) as site:
        assert (await ask(site, PATH))[0] == 403
        assert (await ask(site, PATH, headers={"key": "secret"}))[0] == 200
    async with gateway_site(open_control_apis=False) as site:
        assert (await ask(site, PATH))[0] == 403


async def test_a_scheduler_without_timelines_is_missing() -> None:
    async with gateway_site() as site:
        assert (await ask(site, INFER, "POST", BODY))[0] == 200
        _, body = await ask(site, PATH + "?last=30")
        timeline = read_timeline(body)
        [gateway] = timeline.services
        [request] = gateway.records
        assert isinstance(request, GatewayRequest)
        assert (request.protocol, request.model, request.status) == ("http", "echo", 0)
        assert gateway.from_ns < request.received_ns < request.ended_ns
        [missing] = timeline.missing
        assert missing.startswith("scheduler 1 of 1: ")


@pytest.mark.parametrize("last", ["0", "-1", "x", "inf", "nan", "1e308", "1_0"])
async def test_bad_queries(last: str) -> None:
    async with gateway_site() as site:
        got, body = await ask(site, f"{PATH}?last={last}")
        assert got == 400
        assert b"last" in body
        # Nothing that was refused keeps it from others.
        assert (await ask(site, PATH))[0] == 200


async def test_only_get() -> None:
    async with gateway_site() as site:
        assert (await ask(site, PATH, "POST", b""))[0] == 405
