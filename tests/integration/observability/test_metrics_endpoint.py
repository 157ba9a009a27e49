"""A service's own /metrics, asked by a real HTTP client and by hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from nereid.observability.metrics import EXECUTORS
from nereid.observability.metrics_endpoint import MetricsEndpoint
from nereid.observability.metrics_page import Page
from tests.support.peers.openmetrics import read_openmetrics


@asynccontextmanager
async def serving(*, broken: bool = False, ready: bool = True) -> AsyncIterator[str]:
    def write(page: Page) -> None:
        if broken:
            raise RuntimeError("no page today")
        page.add_value(EXECUTORS, 7)

    endpoint = MetricsEndpoint(write, is_ready=lambda: ready)
    address = await endpoint.listen("127.0.0.1", 0)
    try:
        yield address
    finally:
        await endpoint.close()


def ask(address: str, path: str, method: str = "GET", accept: str = "*/*") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(method, path, headers={"accept": accept})
        response = connection.getresponse()
        kind = response.headers.get("Allow", response.headers["Content-Type"])
        return response.status, kind, response.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/metrics?x=1"])
async def test_it_serves_the_services_series_and_the_processs(path: str) -> None:
    async with serving() as address:
        status, kind, page = await asyncio.to_thread(ask, address, path)
    assert (status, kind) == (200, "text/plain; charset=utf-8")
    assert "nereid_executors 7\n" in page
    assert "process_cpu_seconds_total" in page


async def test_it_serves_openmetrics_to_those_that_prefer_it() -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    async with serving() as address:
        status, kind, page = await asyncio.to_thread(ask, address, "/metrics", accept=accept)
    assert (status, kind) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    names = {family.name for family in read_openmetrics(page)}
    assert {"nereid_executors", "process_cpu_seconds", "python_gc_collections"} <= names


async def test_other_paths_and_methods() -> None:
    async with serving() as address:
        assert (await asyncio.to_thread(ask, address, "/"))[0] == 404
        assert (await asyncio.to_thread(ask, address, "/metrics", "POST"))[:2] == (405, "GET")


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)], ids=["ready", "not"])
async def test_health_is_served_by_the_gateways_paths(ready: bool, status: int) -> None:
    async with serving(ready=ready, broken=True) as address:
        assert (await asyncio.to_thread(ask, address, "/v2/health/live"))[0] == 200
        assert (await asyncio.to_thread(ask, address, "/v2/health/ready"))[0] == status


async def test_a_page_that_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(broken=True) as address:
        status, _, page = await asyncio.to_thread(ask, address, "/metrics")
    assert (status, page) == (500, "")
    assert "no page today" in caplog.text


@pytest.mark.parametrize("data", [b"", b"GET /metr", b"x" * 100_000])
async def test_clients_that_break_the_protocol_are_dropped(data: bytes) -> None:
    async with serving() as address:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        assert (await asyncio.to_thread(ask, address, "/metrics"))[0] == 200
