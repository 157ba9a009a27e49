"""The metrics port of a gateway, in front of a scheduler that has metrics or has none."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException

from nereid.mesh_routing.access import OneScheduler
from nereid.observability.metrics import FIRST_RESPONSE, SUCCESS
from nereid.observability.metrics_page import Exemplar, Histogram, Page
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Handlers, RpcError, Status, memory_links
from nereid_gateway.service import GatewayService, joined
from tests.support.gateway import gateway_http
from tests.support.gateway import gateway_site as site
from tests.support.gateway.gateway_http import Response
from tests.support.gateway.gateway_site import GatewaySite, gateway_site
from tests.support.peers.openmetrics import read_openmetrics
from tests.support.rpc.local_channel import LocalChannel
from tests.support.waiting import until

INFER = json.dumps(
    {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
).encode()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[pb.MetricsRequest]:
    """The requests for metrics that schedulers got; their pages have one series."""
    requests: list[pb.MetricsRequest] = []

    def metrics(_: site.EchoScheduler, message: bytes) -> bytes:
        requests.append(pb.MetricsRequest.FromString(message))
        return b"mesh 1\n"

    site.serve_metrics_page(monkeypatch, metrics)
    return requests


async def ask(address: str | None, path: str, method: str = "GET", **headers: str) -> Response:
    assert address is not None
    return await gateway_http.ask(gateway_http.At(address), method, path, b"", **headers)


async def page_of(gateway: GatewaySite) -> str:
    response = await ask(gateway.service.metrics_address, "/metrics")
    assert (response.status, response.content_type) == (200, "text/plain;")
    return response.body.decode()


async def test_openmetrics_has_the_schedulers_exemplars(monkeypatch: pytest.MonkeyPatch) -> None:
    def metrics(_: site.EchoScheduler, message: bytes) -> bytes:
        page = Page(exemplars=pb.MetricsRequest.FromString(message).with_exemplars)
        observed = Histogram((100.0,))
        observed.observe(7)
        observed.set_exemplar(Exemplar(b"0123456789abcdef", 7, 1))
        page.add_value(SUCCESS, 1, {"model": "m"})
        page.add_histogram(FIRST_RESPONSE, {"model": "m"}, observed, 7)
        return page.encode()

    site.serve_metrics_page(monkeypatch, metrics)
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4,*/*;q=0.1"
    async with gateway_site() as gateway:
        address = gateway.service.metrics_address
        assert address is not None
        assert "trace_id" not in await page_of(gateway)
        response = await ask(address, "/metrics", Accept=accept)
    kind = b"\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"
    assert (response.status, kind in response.head) == (200, True)
    families = {each.name: each for each in read_openmetrics(response.body.decode())}
    assert [each.name for each in families[SUCCESS.name].samples] == [SUCCESS.name]
    assert {"nereid_gateway_http_responses", "python_info"} & set(families) == {"python_info"}
    exemplar = families[FIRST_RESPONSE.name].samples[0].exemplar
    assert exemplar is not None
    assert exemplar.labels == {"trace_id": b"0123456789abcdef".hex()}


@pytest.mark.usefixtures("asked")
async def test_the_page_is_the_meshs_and_the_gateways() -> None:
    async with gateway_site() as gateway:
        page = await page_of(gateway)
    assert page.startswith("mesh 1\n# HELP nereid_gateway")
    assert "\nnereid_gateway_linked 1\n" in page
    assert "\nprocess_cpu_seconds_total " in page


async def test_responses_are_counted_by_status() -> None:
    async with gateway_site() as gateway:
        for path, body in (
            ("/v2/models/echo/infer", INFER),
            ("/v2/models/echo/infer", INFER),
            ("/v2/models/fail/infer", INFER),
            ("/v2/models/unknown/infer", INFER),
            ("/v2/models/echo/infer", b"{"),
        ):
            await gateway_http.ask(gateway, "POST", path, body)
        async with grpcclient.InferenceServerClient(gateway.grpc) as client:
            tensor = grpcclient.InferInput("INPUT0", [0], "FP32")
            tensor._raw_content = b""
            await client.infer("echo", [tensor])
            for name in ("fail", "unknown"):
                with pytest.raises(InferenceServerException):
                    await client.infer(name, [tensor])
            assert await client.is_server_live()
            with pytest.raises(InferenceServerException):
                await client.get_model_metadata("unknown")
        counts = dict(
            line.rsplit(" ", 1)
            for line in (await page_of(gateway)).splitlines()
            if "_responses_total{" in line
        )
    assert counts == {
        'nereid_gateway_http_responses_total{status="200"}': "2",
        'nereid_gateway_http_responses_total{status="404"}': "1",
        'nereid_gateway_http_responses_total{status="500"}': "2",
        'nereid_gateway_grpc_responses_total{status="OK"}': "2",
        'nereid_gateway_grpc_responses_total{status="NOT_FOUND"}': "2",
        'nereid_gateway_grpc_responses_total{status="INTERNAL"}': "1",
    }


async def test_calls_that_end_early_are_counted_by_what_ended_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    under_way: asyncio.Queue[None] = asyncio.Queue()
    others = site.EchoScheduler.handlers

    def handlers(self: site.EchoScheduler) -> Handlers:
        async def never(_call: Any, _message: bytes) -> bytes:
            under_way.put_nowait(None)
            await asyncio.Event().wait()
            raise AssertionError

        table = others(self)
        table.async_unary["/nereid.v1.Scheduler/ModelStatistics"] = never  # type: ignore[index]
        return table

    monkeypatch.setattr(site.EchoScheduler, "handlers", handlers)

    async def cancel(call: asyncio.Task[Any], started: Awaitable[Any]) -> None:
        await started
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    async with gateway_site() as gateway:
        async with grpcclient.InferenceServerClient(gateway.grpc) as client:
            tensor = grpcclient.InferInput("INPUT0", [0], "FP32")
            tensor._raw_content = b""
            infer = asyncio.create_task(client.infer("hold", [tensor]))
            await cancel(infer, gateway.scheduler.next_held())
            control = asyncio.create_task(client.get_inference_statistics())
            await cancel(control, under_way.get())
            with pytest.raises(InferenceServerException, match="DEADLINE"):
                await client.infer("hold", [tensor], client_timeout=0.5)
            with pytest.raises(InferenceServerException, match="DEADLINE"):
                await client.get_inference_statistics(client_timeout=0.5)
            counted = gateway.service._grpc_front.statuses
            await until(lambda: sum(counted.values()) >= 4)
        assert counted == {Status.CANCELLED: 2, Status.DEADLINE_EXCEEDED: 2}
        page = await page_of(gateway)
    assert '\nnereid_gateway_grpc_responses_total{status="CANCELLED"} 2\n' in page
    assert '\nnereid_gateway_grpc_responses_total{status="DEADLINE_EXCEEDED"} 2\n' in page


async def test_pending_requests_are_counted() -> None:
    async with gateway_site() as gateway:
        waiting = asyncio.create_task(
            gateway_http.ask(gateway, "POST", "/v2/models/hold/infer", INFER)
        )
        held = await gateway.scheduler.next_held()
        page = await page_of(gateway)
        assert "\nnereid_gateway_pending_requests 1\n" in page
        assert "\nnereid_gateway_http_connections 1\n" in page
        gateway.scheduler.link.send(gateway.scheduler.echo(held))
        assert (await waiting).status == 200
        assert "\nnereid_gateway_pending_requests 0\n" in await page_of(gateway)


async def test_a_change_of_what_the_page_lacks_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_there = False

    def metrics(_scheduler: site.EchoScheduler, _message: bytes) -> bytes:
        if not is_there:
            raise RpcError(Status.UNAVAILABLE, "not now")
        return b"mesh 1\n"

    def logged() -> list[str]:
        found = [each.getMessage() for each in caplog.records if "metrics page" in each.msg]
        caplog.clear()
        return found

    site.serve_metrics_page(monkeypatch, metrics)
    caplog.set_level(logging.INFO, "nereid_gateway.extras.metrics")
    lacks = ["the metrics page lacks the scheduler's series: not now"]
    async with gateway_site() as gateway:
        for is_there, expected in (
            (False, lacks),
            (True, ["the metrics page has the scheduler's series again"]),
            (False, lacks),
        ):
            for _ in range(3):
                assert (await page_of(gateway)).startswith("mesh 1\n") is is_there
            assert logged() == expected


async def test_other_paths_and_methods_are_as_on_triton() -> None:
    async with gateway_site() as gateway:
        address = gateway.service.metrics_address
        for path, method, status in (
            ("/v2", "GET", 200),
            ("/metricsx", "GET", 200),
            ("/metrics", "POST", 405),
        ):
            response = await ask(address, path, method)
            assert (response.status, response.body) == (status, b"")
        assert b"nereid_" in (await ask(address, "/metrics/")).body


async def test_health_is_served_without_credentials(tmp_path: Path) -> None:
    auth = tmp_path / "auth.toml"
    auth.write_text(f'[[keys]]\nname = "a"\nsha256 = "{"0" * 64}"\nrights = ["inference"]\n')
    async with gateway_site(auth_config=str(auth)) as gateway:
        address = gateway.service.metrics_address
        ready = "/v2/health/ready"
        assert (await ask(gateway.http, ready)).status == 401
        assert (await ask(address, ready)).status == 200
        gateway.scheduler.ready = False
        assert (await ask(address, ready)).status == 400
        assert (await ask(address, "/v2/health/live")).status == 200
        assert (await ask(address, "/v2/health/live", "POST")).status == 405


@pytest.mark.parametrize("switch", ["cpu", "gpu"])
async def test_machines_may_be_left_out(asked: list[pb.MetricsRequest], switch: str) -> None:
    async with gateway_site(**{f"allow_{switch}_metrics": False}) as gateway:
        await page_of(gateway)
    expected = pb.MetricsRequest(without_cpu=switch == "cpu", without_gpu=switch == "gpu")
    assert asked == [expected]


async def test_metrics_may_be_off() -> None:
    async with gateway_site(allow_metrics=False) as gateway:
        assert gateway.service.metrics_address is None
        assert gateway.http


async def test_a_metrics_port_in_use_leaves_nothing_behind() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        scheduler = site.EchoScheduler()
        mine, _ = memory_links()
        service = GatewayService(
            site.settings(metrics_port=taken.getsockname()[1]),
            mesh=OneScheduler(joined(mine), LocalChannel(scheduler.handlers())),
        )
        with pytest.raises(OSError, match="in use") as caught:
            await service.start()
        assert caught.value.errno == errno.EADDRINUSE
    for address in (service.http_address, service.grpc_address):
        assert address is not None
        host, port = address.split(":")
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await asyncio.open_connection(host, int(port))
