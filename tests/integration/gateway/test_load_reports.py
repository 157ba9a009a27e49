"""Load reports in headers of HTTP responses."""

from __future__ import annotations

import re

import pytest

from nereid.rpc import RpcError, Status
from tests.support.gateway import gateway_site as site
from tests.support.gateway.gateway_http import BODY, INFER, ask

GENERATE = "/v2/models/echo/generate"
REPORT = re.compile(rb"\r\nendpoint-load-metrics: ([^\r]*)\r\n")
TEXT = b"TEXT cpu_utilization=0.5"
JSON = b'JSON {"cpu_utilization":0.5,"named_metrics":{}}'


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each metrics call of a gateway: whether the scheduler responded."""
    asked: list[bool] = []

    def metrics(scheduler: site.EchoScheduler, _: bytes) -> bytes:
        asked.append(scheduler.ready)
        if not scheduler.ready:
            raise RpcError(Status.UNAVAILABLE, "not now")
        return b"nv_cpu_utilization 0.5\n"

    site.serve_metrics_page(monkeypatch, metrics)
    return asked


@pytest.mark.parametrize(("target", "body"), [(INFER, BODY), (GENERATE, b'{"INPUT0":1}')])
async def test_load_is_reported_on_request_only(
    asked: list[bool], target: str, body: bytes
) -> None:
    async with site.gateway_site() as gateway:
        response = await ask(gateway, "POST", target, body)
        assert REPORT.search(response.head) is None
        assert asked == []
        for form, expected in (("text", TEXT), ("json", JSON), ("TEXT", None), ("", None)):
            headers = {"endpoint_load_metrics_format": form, "accept_encoding": "gzip"}
            response = await ask(gateway, "POST", target, body, **headers)
            assert response.status == 200
            report = REPORT.search(response.head)
            assert (report and report[1]) == expected
        assert len(asked) <= 2


async def test_a_response_does_not_depend_on_its_report(asked: list[bool]) -> None:
    async with site.gateway_site() as gateway:
        gateway.scheduler.ready = False
        response = await ask(gateway, "POST", INFER, BODY, endpoint_load_metrics_format="text")
        assert response.status == 200
        assert REPORT.search(response.head) is None
        assert asked == [False]
