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

from nereid.core.messages import InferResponse
from nereid.services.gateway.auth.api_key import digest_of, make_key
from tests.support.gateway import gateway_streams
from tests.support.gateway.gateway_http import BODY, INFER, ask, connect
from tests.support.gateway.gateway_site import GatewaySite, gateway_site

SERVICE = "/inference.GRPCInferenceService/"
FULL, CALLER, NARROW, SLOW = make_key(), make_key(), make_key(), make_key()
CONFIG = f"""
[anonymous]
rights = ["health"]
[[keys]]
name = "full"
sha256 = "{digest_of(FULL)}"
rights = ["all"]
[[keys]]
name = "caller"
sha256 = "{digest_of(CALLER)}"
rights = ["inference", "metadata"]
models = ["ech?", "hold"]
concurrency = 1
[[keys]]
name = "slow"
sha256 = "{digest_of(SLOW)}"
rights = ["all"]
requests_per_second = 0.01
burst = 2
"""


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
        ("GET", "/v2/health/live", bearer(CALLER), 200),
        ("GET", "/v2/health/live", bearer("wrong"), 401),
        ("GET", "/v2", {}, 401),
        ("GET", "/v2", bearer(CALLER), 200),
        ("GET", "/v2", {"x-api-key": CALLER}, 200),
        ("GET", "/v2", {"X-API-KEY": CALLER}, 200),
        ("GET", "/v2", {"Authorization": f"Basic {CALLER}"}, 401),
        ("POST", INFER, {}, 401),
        ("POST", INFER, {"x-api-key": "wrong"}, 401),
        ("POST", INFER, {"x-api-key": CALLER}, 200),
        ("POST", "/v2/models/fail/infer", bearer(CALLER), 403),
        ("GET", "/v2/models/fail", bearer(CALLER), 403),
        ("GET", "/v2/models/echo", bearer(CALLER), 200),
        ("GET", "/v2/models/echo/config", bearer(CALLER), 403),
        ("POST", "/v2/repository/models/echo/load", bearer(CALLER), 403),
        ("GET", "/v2/logging", bearer(CALLER), 403),
        ("GET", "/v2/models/echo/config", bearer(FULL), 200),
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
    """The reply's bytes, or code and text of the failure."""
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


async def test_grpc(config: str) -> None:
    named = b"\x0a\x04fail"
    async with gateway_site(auth_config=config) as site:
        for method, data, key, outcome in (
            ("ServerLive", b"", "", bytes),
            ("/grpc.health.v1.Health/Check", b"", "", bytes),
            ("ServerLive", b"", "wrong", "UNAUTHENTICATED"),
            ("ServerMetadata", b"", "", "UNAUTHENTICATED"),
            ("ServerMetadata", b"", CALLER, bytes),
            ("ModelMetadata", named, CALLER, "PERMISSION_DENIED"),
            ("ModelMetadata", named, FULL, bytes),
            ("ModelConfig", named, CALLER, "PERMISSION_DENIED"),
            ("RepositoryModelLoad", b"", CALLER, "PERMISSION_DENIED"),
            ("LogSettings", b"", "", "UNAUTHENTICATED"),
            ("SystemSharedMemoryRegister", b"", CALLER, "PERMISSION_DENIED"),
            ("ModelInfer", infer_message(), "", "UNAUTHENTICATED"),
            ("ModelInfer", b"\xff", "", "UNAUTHENTICATED"),
            ("ModelInfer", infer_message(), "wrong", "UNAUTHENTICATED"),
            ("ModelInfer", infer_message(), CALLER, bytes),
            ("ModelInfer", infer_message("fail"), CALLER, "PERMISSION_DENIED"),
            ("ModelInfer", infer_message("fail"), FULL, "INTERNAL"),
        ):
            found = await call(site, method, data, key)
            assert (bytes if isinstance(found, bytes) else found) == outcome, (method, key)
        for path in (
            gateway_streams.PATH,
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        ):
            async with grpc.aio.insecure_channel(site.grpc) as channel:
                stream: Any = channel.stream_stream(path)(iter(()), timeout=5)
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await stream.read()
                assert failure.value.code().name == "UNAUTHENTICATED"


async def test_the_last_model_name_in_a_message_counts(site: GatewaySite) -> None:
    """As for protobuf: a message that names a permitted model first does not get another one."""
    twice = b"\x0a\x04echo" + infer_message("fail")
    assert await call(site, "ModelInfer", twice, CALLER) == "PERMISSION_DENIED"


async def test_messages_of_a_stream_are_refused_one_by_one(config: str) -> None:
    async with (
        gateway_site(auth_config=config) as site,
        grpc.aio.insecure_channel(site.grpc) as channel,
    ):
        stream = gateway_streams.opened(channel, ("x-api-key", CALLER))
        request = gateway_streams.request
        await gateway_streams.write(stream, request("fail", "1"), request("echo", "2"))
        ((error, _, _), second) = await gateway_streams.read_replies(stream, 2)
        assert error == "'caller' has no right to use the API 'inference' with model 'fail'"
        assert second == ("", "2", "echo")
        # Its limit is one request in flight.
        await gateway_streams.write(stream, request("hold", "3"), request("echo", "4"))
        held = await site.scheduler.next_held()
        site.scheduler.link.send(site.scheduler.echo(held))
        replies = await gateway_streams.read_replies(stream, 2)
        errors = {each[0] for each in replies}
        refused = "'caller' has 1 requests in flight, which is its limit"
        assert errors == {"", refused}
        await gateway_streams.write(stream, request("echo", "5"))
        assert await gateway_streams.read_replies(stream, 1) == [("", "5", "echo")]
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


async def held_request(site: GatewaySite) -> tuple[asyncio.StreamWriter, Any]:
    _, writer = await connect(site)
    writer.write(
        b"POST /v2/models/hold/infer HTTP/1.1\r\nHost: x\r\nx-api-key: %b\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (CALLER.encode(), len(BODY), BODY)
    )
    return writer, await site.scheduler.next_held()


async def test_concurrency_is_released_by_response_error_and_disconnect(site: GatewaySite) -> None:
    async def is_free() -> bool:
        response = await ask(site, "POST", INFER, BODY, x_api_key=CALLER)
        assert response.status in {200, 429}
        return response.status == 200

    for failure in (None, "error"):
        writer, held = await held_request(site)
        assert not await is_free()
        assert await call(site, "ModelInfer", infer_message(), CALLER) == "RESOURCE_EXHAUSTED"
        assert (await ask(site, "GET", "/v2", x_api_key=CALLER)).status == 429
        if failure:
            error = site.scheduler.wire_response(held, "nope")
            site.scheduler.link.send(InferResponse(held.id, error=error.error))
        else:
            site.scheduler.link.send(site.scheduler.echo(held))
        assert await is_free()
        writer.close()
    writer, _ = await held_request(site)
    writer.transport.abort()
    await asyncio.wait_for(site.scheduler.cancelled.get(), 5)
    assert await is_free()
    # Over gRPC, by cancellation.
    async with grpc.aio.insecure_channel(site.grpc) as channel:
        unary: Any = channel.unary_unary(SERVICE + "ModelInfer")
        pending = unary(infer_message("hold"), metadata=(("x-api-key", CALLER),))
        await site.scheduler.next_held()
        assert not await is_free()
        pending.cancel()
        await asyncio.wait_for(site.scheduler.cancelled.get(), 5)
    assert await is_free()


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
    page = await ask_metrics(site)
    name = "nereid_gateway_access_refusals_total"
    assert f'{name}{{reason="no_credentials"}} 1' in page
    assert f'{name}{{reason="invalid_credentials"}} 1' in page
    assert f'{name}{{reason="rate"}} 0' in page


async def ask_metrics(site: GatewaySite) -> str:
    address = site.service.metrics_address
    assert address is not None
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    page = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return page.decode()


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
