"""--auth-config through both ports and NVIDIA's clients."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from nereid_gateway.guards.auth.api_key import make_key
from tests.support.gateway import gateway_streams
from tests.support.gateway.auth_config import HEALTH_FOR_ALL, key_entry
from tests.support.gateway.gateway_http import BODY, INFER, At, ask, connect
from tests.support.gateway.gateway_site import GatewaySite, gateway_site

SERVICE = "/inference.GRPCInferenceService/"
FULL, CALLER, SLOW = make_key(), make_key(), make_key()
CONFIG = (
    HEALTH_FOR_ALL
    + key_entry("full", FULL, "all")
    + key_entry(
        "caller", CALLER, "inference", "metadata", more='models = ["ech?", "hold"]\nconcurrency = 1'
    )
    + key_entry("slow", SLOW, "all", more="requests_per_second = 0.01\nburst = 2")
)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "auth.toml"
    path.write_text(CONFIG)
    return str(path)


@pytest.fixture
async def site(config: str) -> AsyncIterator[GatewaySite]:
    async with gateway_site(auth_config=config) as made:
        yield made


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("method", "target", "headers", "status"),
    [
        ("GET", "/v2/health/live", {}, 200),
        ("GET", "/v2/health/live", bearer("wrong"), 401),
        ("GET", "/v2", {}, 401),
        ("GET", "/v2", {"x-api-key": CALLER}, 200),
        ("POST", INFER, {}, 401),
        ("POST", INFER, {"x-api-key": CALLER}, 200),
        ("POST", "/v2/models/fail/infer", bearer(CALLER), 403),
        ("GET", "/v2/models/echo/config", bearer(CALLER), 403),
        ("POST", "/v2/repository/models/echo/load", bearer(CALLER), 403),
        ("GET", "/v2/nothing", {}, 404),
    ],
)
async def test_http(
    site: GatewaySite, method: str, target: str, headers: dict[str, str], status: int
) -> None:
    response = await ask(site, method, target, BODY if target.endswith("infer") else b"", **headers)
    assert response.status == status
    challenge = re.search(rb"\r\nWWW-Authenticate: Bearer realm=\"nereid\"(.*)\r\n", response.head)
    assert (challenge is not None) == (status == 401)
    if challenge is not None:
        assert challenge[1] == (b', error="invalid_token"' if headers else b"")


async def call(site: GatewaySite, method: str, data: bytes = b"", key: str = "") -> Any:
    """The reply's bytes, or the code of the failure."""
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    path = method if method.startswith("/") else SERVICE + method
    async with grpc.aio.insecure_channel(site.grpc) as channel:
        try:
            unary: Any = channel.unary_unary(path)
            return await unary(data, metadata=metadata, timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code().name


def infer_message(model: str = "echo") -> bytes:
    built: bytes = gateway_streams.request(model, "1").SerializeToString()
    return built


async def test_grpc(site: GatewaySite, channel: grpc.aio.Channel) -> None:
    named = b"\x0a\x04fail"
    for method, data, key, outcome in (
        ("ServerLive", b"", "", bytes),
        ("/grpc.health.v1.Health/Check", b"", "", bytes),
        ("ServerLive", b"", "wrong", "UNAUTHENTICATED"),
        ("ModelMetadata", named, CALLER, "PERMISSION_DENIED"),
        ("RepositoryModelLoad", b"", CALLER, "PERMISSION_DENIED"),
        ("ModelInfer", b"\xff", "", "UNAUTHENTICATED"),
        ("ModelInfer", infer_message(), CALLER, bytes),
        ("ModelInfer", infer_message("fail"), CALLER, "PERMISSION_DENIED"),
    ):
        found = await call(site, method, data, key)
        assert (bytes if isinstance(found, bytes) else found) == outcome, (method, key)
    for path in (
        gateway_streams.PATH,
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ):
        stream: Any = channel.stream_stream(path)(iter(()), timeout=5)
        assert (await stream.code()).name == "UNAUTHENTICATED"


async def test_the_last_model_name_in_a_message_counts(site: GatewaySite) -> None:
    """As for protobuf: a message that names a permitted model first does not get another one."""
    twice = b"\x0a\x04echo" + infer_message("fail")
    assert await call(site, "ModelInfer", twice, CALLER) == "PERMISSION_DENIED"


async def test_messages_of_a_stream_are_refused_one_by_one(
    site: GatewaySite, channel: grpc.aio.Channel
) -> None:
    stream = gateway_streams.opened(channel, ("x-api-key", CALLER))
    request = gateway_streams.request
    await gateway_streams.write(stream, request("fail", "1"), request("echo", "2"))
    ((error, _, _), second) = await gateway_streams.read_replies(stream, 2)
    assert "no right to use the API 'inference' with model 'fail'" in error
    assert second == ("", "2", "echo")
    await stream.done_writing()
    assert await gateway_streams.end(stream) == ("OK", "")


async def test_the_rate(site: GatewaySite) -> None:
    for _ in range(2):
        assert (await ask(site, "POST", INFER, BODY, x_api_key=SLOW)).status == 200
    response = await ask(site, "POST", INFER, BODY, x_api_key=SLOW)
    assert response.status == 429
    retry = re.search(rb"\r\nRetry-After: (\d+)\r\n", response.head)
    assert retry is not None
    assert 90 <= int(retry[1]) <= 100
    assert b"exceeds 0.01 requests per second" in response.body
    assert await call(site, "ModelInfer", infer_message(), SLOW) == "RESOURCE_EXHAUSTED"
    assert await call(site, "ServerMetadata", b"", SLOW) == "RESOURCE_EXHAUSTED"
    # Others are not affected.
    assert (await ask(site, "POST", INFER, BODY, x_api_key=CALLER)).status == 200


async def test_concurrency_is_released_by_the_response(site: GatewaySite) -> None:
    pending = asyncio.ensure_future(
        ask(site, "POST", "/v2/models/hold/infer", BODY, x_api_key=CALLER)
    )
    held = await site.scheduler.next_held()
    for target, body in ((INFER, BODY), ("/v2", b"")):
        method = "POST" if body else "GET"
        assert (await ask(site, method, target, body, x_api_key=CALLER)).status == 429
    assert await call(site, "ModelInfer", infer_message(), CALLER) == "RESOURCE_EXHAUSTED"
    site.scheduler.link.send(site.scheduler.echo(held))
    assert (await pending).status == 200
    assert (await ask(site, "POST", INFER, BODY, x_api_key=CALLER)).status == 200


async def test_concurrency_is_released_by_a_disconnect(site: GatewaySite) -> None:
    _, writer = await connect(site)
    head = "POST /v2/models/hold/infer HTTP/1.1\r\nHost: x\r\n"
    head += f"x-api-key: {CALLER}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    writer.write(head.encode() + BODY)
    await site.scheduler.next_held()
    writer.transport.abort()
    await asyncio.wait_for(site.scheduler.cancelled.get(), 5)
    assert (await ask(site, "POST", INFER, BODY, x_api_key=CALLER)).status == 200


async def test_concurrency_is_released_by_a_cancelled_call(
    site: GatewaySite, channel: grpc.aio.Channel
) -> None:
    unary: Any = channel.unary_unary(SERVICE + "ModelInfer")
    pending = unary(infer_message("hold"), metadata=(("x-api-key", CALLER),))
    await site.scheduler.next_held()
    pending.cancel()
    await asyncio.wait_for(site.scheduler.cancelled.get(), 5)
    assert isinstance(await call(site, "ModelInfer", infer_message(), CALLER), bytes)


async def test_a_large_body_is_refused_before_it_arrives(site: GatewaySite) -> None:
    reader, writer = await connect(site)
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n" % INFER.encode()
    writer.write(head)
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)).startswith(b"HTTP/1.1 401 ")
    writer.close()


async def test_credentials_never_become_parameters(config: str) -> None:
    async with gateway_site(
        auth_config=config,
        http_header_forward_pattern=".*",
        grpc_header_forward_pattern=".*",
    ) as site:
        await ask(site, "POST", INFER, BODY, **bearer(FULL), **{"X-Api-Key": FULL, "other": "1"})
        await call(site, "ModelInfer", infer_message(), FULL)
        over_http, over_grpc = site.scheduler.received
        assert over_http.parameters is not None
        assert over_http.parameters["other"] == "1"
        for request in (over_http, over_grpc):
            names = {name.lower() for name in request.parameters or ()}
            assert not names & {"authorization", "x-api-key"}
            assert FULL not in str(request.parameters)


async def test_refusals_are_in_the_metrics(site: GatewaySite) -> None:
    await ask(site, "GET", "/v2")
    await call(site, "ServerMetadata", b"", "wrong")
    assert site.service.metrics_address is not None
    page = (await ask(At(site.service.metrics_address), "GET", "/metrics")).body.decode()
    name = "nereid_gateway_access_refusals_total"
    for reason, count in (("no_credentials", 1), ("invalid_credentials", 1), ("rate", 0)):
        assert f'{name}{{reason="{reason}"}} {count}' in page


async def test_hardened_gateways_open_control_apis_to_those_with_the_right(config: str) -> None:
    """--hardened closes them to everybody else (--open-control-apis=false)."""
    index, load = "/v2/repository/index", "/v2/repository/models/echo/load"
    async with gateway_site(auth_config=config, open_control_apis=False) as site:
        assert (await ask(site, "GET", "/v2/logging")).status == 401
        assert (await ask(site, "POST", load, x_api_key=CALLER)).status == 403
        assert (await ask(site, "POST", index, x_api_key=FULL)).status == 200
        assert isinstance(await call(site, "RepositoryIndex", b"", FULL), bytes)
    Path(config).write_text(CONFIG.replace('["health"]', '["health", "model-repository"]'))
    async with gateway_site(auth_config=config, open_control_apis=False) as site:
        # What anonymous clients might use is as closed as without a configuration.
        assert (await ask(site, "POST", load)).status == 403
