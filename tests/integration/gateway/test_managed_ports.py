"""SageMaker's and Vertex AI's ports in front of a scripted scheduler: the HTTP port's data plane,
limits and guards, with the platforms' routes and content types.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nereid.core.wire.messages import ErrorStatus, InferResponse
from nereid.process.service_process import StartError
from nereid_gateway.guards.auth.api_key import make_key
from tests.support.gateway.auth_config import HEALTH_FOR_ALL, key_entry
from tests.support.gateway.gateway_http import (
    BODY,
    FLOATS,
    INPUT,
    At,
    Response,
    ask,
    connect,
    read_response,
)
from tests.support.gateway.gateway_site import GatewaySite, gateway_site, serve_metrics_page

PORTS = {
    "allow_sagemaker": True,
    "sagemaker_port": 0,
    "sagemaker_default_model": "echo",
    "allow_vertex_ai": True,
    "vertex_ai_port": 0,
    "vertex_ai_default_model": "echo",
}
PLATFORMS = [
    ("sagemaker", "/invocations", "application/vnd.sagemaker-triton.binary+json;json-header-size="),
    ("vertex-ai", "/predict", "application/vnd.vertex-ai-triton.binary+json;json-header-size="),
]
REDIRECT = "X_Vertex_Ai_Triton_Redirect"


@asynccontextmanager
async def managed_site(**changes: Any) -> AsyncIterator[tuple[GatewaySite, At, At]]:
    """The site, SageMaker's port and Vertex AI's."""
    async with gateway_site(**(PORTS | changes)) as site:
        ports = site.service.managed_addresses
        yield site, At(ports["sagemaker"]), At(ports["vertex-ai"])


def binary_body(size: int = len(FLOATS)) -> tuple[bytes, int]:
    """A request with a binary tensor in and out, and the length of its JSON header."""
    tensor = {**INPUT, "shape": [size // 4], "parameters": {"binary_data_size": size}}
    header = json.dumps(
        {"id": "7", "inputs": [tensor], "parameters": {"binary_data_output": True}}
    ).encode()
    return header + FLOATS * (size // len(FLOATS)), len(header)


def header_length(platform: str, head: bytes) -> int:
    """As a response says it: Triton does not in one way on both ports."""
    if platform == "vertex-ai":
        assert b"Content-Type: application/octet-stream\r\n" in head
        return int(head.partition(b"Inference-Header-Content-Length: ")[2].partition(b"\r")[0])
    assert b"Inference-Header" not in head
    return int(head.partition(f"Content-Type: {PLATFORMS[0][2]}".encode())[2].partition(b"\r")[0])


def outputs(response: Response) -> Any:
    return json.loads(response.body)["outputs"][0]["data"]


@pytest.mark.parametrize(("platform", "target", "binary_type"), PLATFORMS)
async def test_inference(platform: str, target: str, binary_type: str) -> None:
    async with managed_site() as (site, *_):
        port = At(site.service.managed_addresses[platform])
        response = await ask(port, "POST", target, BODY, Content_Type="application/json")
        assert (response.status, response.content_type) == (200, "application/json")
        assert outputs(response) == [1, 2]
        # Small enough to be gathered, and large enough for a buffer.
        for size in (8, 1 << 20):
            body, length = binary_body(size)
            form = f"{binary_type}{length}"
            response = await ask(
                port, "POST", target, body, Content_Type=form, Accept_Encoding="gzip"
            )
            assert response.status == 200, response.body
            assert b"Content-Encoding" not in response.head
            header = json.loads(response.body[: header_length(platform, response.head)])
            assert header["id"] == "7"
            assert response.body.endswith(FLOATS)
            assert len(response.body) - len(json.dumps(header, separators=(",", ":"))) == size
        # A raw request has no JSON at all.
        raw = await ask(port, "POST", target, FLOATS, Content_Type=f"{binary_type}0")
        assert (raw.status, raw.body[-8:]) == (200, FLOATS)


@pytest.mark.parametrize(("platform", "target", "binary_type"), PLATFORMS)
async def test_repeated_requests_of_one_connection(
    platform: str, target: str, binary_type: str
) -> None:
    """What the HTTP port remembers of repeated heads is of its own routes."""
    async with managed_site() as (site, *_):
        port = At(site.service.managed_addresses[platform])
        reader, writer = await connect(port)
        body, length = binary_body()
        lines = [f"POST {target} HTTP/1.1", f"Content-Type: {binary_type}{length}"]
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}"]).encode()
        for _ in range(4):
            writer.write(head + b"\r\n\r\n" + body)
            response_head, content = await read_response(reader)
            assert response_head.startswith(b"HTTP/1.1 200 ")
            assert header_length(platform, response_head)
            assert content.endswith(FLOATS)
        # Of the two requests that come at once each gets its own response.
        writer.write(head + b"\r\n\r\n" + body + b"GET /nowhere HTTP/1.1\r\n\r\n")
        first = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert first.startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.mark.parametrize(("platform", "target", "binary_type"), PLATFORMS)
async def test_bad_requests(platform: str, target: str, binary_type: str) -> None:
    async with managed_site(http_max_input_size=1000) as (site, *_):
        port = At(site.service.managed_addresses[platform])
        body, _ = binary_body()
        for form, text in [
            (f"x {binary_type}1", "expect MIME type for binary data starts with"),
            (f"{binary_type}x", "Unable to parse inference header size, got: x"),
            (f"{binary_type}-1", "should be in range"),
            (f"{binary_type}{len(body) + 1}", "should be in range"),
        ]:
            response = await ask(port, "POST", target, body, Content_Type=form)
            assert (response.status, text in response.body.decode()) == (400, True)
        # The header's length comes in the content type alone.
        other = await ask(port, "POST", target, BODY, Inference_Header_Content_Length="3")
        assert other.status == 200
        assert (await ask(port, "POST", target, b"{")).status in {400, 500}
        assert (await ask(port, "POST", target, b"x" * 1001)).status == 400
        refused = await ask(port, "GET", target)
        assert (refused.status, b"Allow: POST\r\n" in refused.head) == (405, True)
        for unknown in ("/", "/v2", "/v2/models/echo/infer", "/models"):
            assert (await ask(port, "POST", unknown, BODY)).status == 400


async def test_health() -> None:
    async with managed_site() as (site, sagemaker, vertex):
        for port, target in ((sagemaker, "/ping"), (vertex, "/health")):
            assert (await ask(port, "GET", target)).status == 200
            assert (await ask(port, "POST", target)).status == 405
            site.scheduler.ready = False
            assert (await ask(port, "GET", target)).status == 400
            site.scheduler.ready = True
    async with managed_site(sagemaker_ping_mode="live") as (site, sagemaker, _):
        site.scheduler.ready = False
        assert (await ask(sagemaker, "GET", "/ping")).status == 200


async def test_statuses_of_sagemakers_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed_site(sagemaker_default_model="fail") as (site, sagemaker, _):
        # As on Triton, which says 500 on the HTTP port.
        assert (await ask(sagemaker, "POST", "/invocations", BODY)).status == 400
        assert (await ask(site, "POST", "/v2/models/fail/infer", BODY)).status == 500
        short = ErrorStatus(13, "CUDA out of memory", accepted=True)
        monkeypatch.setattr(
            site.scheduler, "wire_response", lambda item, _: InferResponse(item.id, error=short)
        )
        response = await ask(sagemaker, "POST", "/invocations", BODY)
        assert (response.status, json.loads(response.body)) == (507, {"error": short.message})
    async with managed_site(sagemaker_default_model="none") as (_, sagemaker, _vertex):
        assert (await ask(sagemaker, "POST", "/invocations", BODY)).status == 404


async def test_the_only_model_is_the_default_one() -> None:
    given = {"sagemaker_default_model": "", "vertex_ai_default_model": ""}
    async with managed_site(**given) as (site, sagemaker, vertex):
        for port, target, name in (
            (sagemaker, "/invocations", b"--sagemaker-default-model"),
            (vertex, "/predict", b"--vertex-ai-default-model"),
        ):
            # Which is not remembered: models come and go.
            response = await ask(port, "POST", target, BODY)
            assert (response.status, name in response.body) == (400, True)
            several, site.scheduler.models = site.scheduler.models, ("echo",)
            both = [ask(port, "POST", target, BODY) for _ in range(2)]
            assert [each.status for each in await asyncio.gather(*both)] == [200, 200]
            site.scheduler.models = several
            assert outputs(await ask(port, "POST", target, BODY)) == [1, 2]
        assert site.scheduler.ready


async def test_generate_as_invocations() -> None:
    async with managed_site(sagemaker_inference_type="generate") as (_, sagemaker, _vertex):
        response = await ask(sagemaker, "POST", "/invocations", b'{"INPUT0": [1, 2]}')
        assert (response.status, json.loads(response.body)["OUTPUT0"]) == (200, [1, 2])


async def test_redirected_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    serve_metrics_page(monkeypatch, lambda *_: b"of_the_mesh 1\n")
    async with managed_site(vertex_ai_default_model="fail") as (_, _sagemaker, vertex):

        async def redirected(to: str, body: bytes = b"") -> Response:
            return await ask(vertex, "POST", "/predict", body, **{REDIRECT: to})

        assert outputs(await redirected("v2/models/echo/infer", BODY)) == [1, 2]
        assert json.loads((await redirected("v2")).body)["name"] == "triton"
        assert json.loads((await redirected("v2/models/echo/config")).body)["name"] == "echo"
        assert (await redirected("v2/models/echo/ready")).status == 200
        assert (await redirected("v2/models/none/ready")).status == 400
        assert len(json.loads((await redirected("v2/repository/index")).body)) == 5
        page = await redirected("metrics")
        assert (page.status, b"of_the_mesh 1\n" in page.body) == (200, True)
        # What the port has responded before.
        assert b'nereid_gateway_http_responses_total{status="200"} 5\n' in page.body
        for nowhere in ("v2/logging", "v2/trace/setting", "predict"):
            assert (await redirected(nowhere)).status == 400
        refused = await ask(vertex, "GET", "/predict", b"", **{REDIRECT: "v2"})
        assert refused.status == 405
    async with managed_site(allow_metrics=False) as (_, _sagemaker, vertex):
        assert (await ask(vertex, "POST", "/predict", b"", **{REDIRECT: "metrics"})).status == 400


async def test_restricted_and_closed_apis(tmp_path: Path) -> None:
    changes = {
        "sagemaker_multi_model": True,
        "sagemaker_repository": str(tmp_path),
        "open_control_apis": False,
        "http_restricted_api": ("inference,statistics:key=secret",),
    }
    load = json.dumps({"model_name": "a", "url": "/opt/ml/models/a/model"}).encode()
    async with managed_site(**changes) as (site, sagemaker, vertex):
        for port, target in ((sagemaker, "/invocations"), (vertex, "/predict")):
            assert (await ask(port, "POST", target, BODY)).status == 403
            assert (await ask(port, "POST", target, BODY, key="secret")).status == 200
        # What restricts the target of a redirect, or what is behind it.
        for to in ("v2/models/echo/infer", "v2/models/stats", "metrics"):
            assert (await ask(vertex, "POST", "/predict", BODY, **{REDIRECT: to})).status == 403
        redirect = {REDIRECT: "v2/repository/models/echo/unload"}
        assert (await ask(vertex, "POST", "/predict", b"", **redirect)).status == 403
        for key in ("a", "a%23b", "a#b"):
            assert (await ask(sagemaker, "POST", f"/models/{key}/invoke", BODY)).status == 403
            assert (await ask(sagemaker, "DELETE", f"/models/{key}")).status == 403
        assert (await ask(sagemaker, "POST", "/models", load)).status == 403
        assert json.loads((await ask(sagemaker, "GET", "/models")).body) == {"models": []}
        # Only repeated requests reach the scheduler.
        assert len(site.scheduler.received) == 2
        exposed = site.service.exposure()
        assert f"to any client of {sagemaker.http}: nothing" in exposed
        assert f" and {vertex.http}: metadata;" in exposed


async def test_authentication(tmp_path: Path) -> None:
    key = make_key()
    config = tmp_path / "auth.toml"
    entry = key_entry("some", key, "inference", more='models = ["echo"]')
    config.write_text(HEALTH_FOR_ALL + entry)
    changes = {
        "auth_config": str(config),
        "sagemaker_multi_model": True,
        "sagemaker_repository": str(tmp_path),
    }
    async with managed_site(**changes) as (_, sagemaker, vertex):
        assert (await ask(sagemaker, "GET", "/ping")).status == 200
        body, length = binary_body(1 << 20)
        for port, target, binary_type in zip(
            (sagemaker, vertex),
            ("/invocations", "/predict"),
            (p[2] for p in PLATFORMS),
            strict=True,
        ):
            form = f"{binary_type}{length}"
            # A large body is refused by its head.
            refused = await ask(port, "POST", target, body, Content_Type=form)
            assert refused.status == 401
            assert (await ask(port, "POST", target, BODY)).status == 401
            headers = {"Content_Type": form, "X_Api_Key": key}
            assert (await ask(port, "POST", target, body, **headers)).status == 200
        fail = {REDIRECT: "v2/models/fail/infer", "X_Api_Key": key}
        assert (await ask(vertex, "POST", "/predict", BODY, **fail)).status == 403
        assert (await ask(vertex, "POST", "/predict", b"", **{REDIRECT: "metrics"})).status == 401
        # Of an archive that this gateway has not loaded itself.
        record = {"key": "a", "model": "other", "models": ["other"], "url": "/a"}
        (tmp_path / ".sagemaker").mkdir()
        (tmp_path / ".sagemaker" / "a").write_text(json.dumps(record))
        refused = await ask(sagemaker, "POST", "/models/a/invoke", BODY, X_Api_Key=key)
        assert refused.status == 403
        for method, target in (("GET", "/models"), ("DELETE", "/models/a"), ("GET", "/models/a")):
            assert (await ask(sagemaker, method, target)).status == 401
            assert (await ask(sagemaker, method, target, X_Api_Key=key)).status == 403


async def test_multi_model_mode_needs_a_repository(tmp_path: Path) -> None:
    for repository in ("", str(tmp_path / "missing")):
        with pytest.raises(StartError, match="--sagemaker-repository"):
            async with managed_site(sagemaker_multi_model=True, sagemaker_repository=repository):
                pass


async def test_a_drain_finishes_what_is_in_flight() -> None:
    async with managed_site(sagemaker_default_model="hold") as (site, sagemaker, _):
        waiting = asyncio.create_task(ask(sagemaker, "POST", "/invocations", BODY))
        held = await site.scheduler.next_held()
        draining = asyncio.create_task(site.service.drain(5))
        await asyncio.sleep(0)
        site.scheduler.link.send(site.scheduler.echo(held))
        response = await waiting
        assert (response.status, b"Connection: close" in response.head) == (200, True)
        await draining
        with pytest.raises(OSError):
            await connect(sagemaker)
