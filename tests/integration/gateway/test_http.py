"""Responses of the gateway's HTTP port: statuses, content types, texts."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any
from urllib.parse import quote

import pytest

from nereid_gateway.core.routes import ENDPOINTS
from nereid_gateway.plane.decoding.limits import LARGE_BYTES
from tests.support.gateway.gateway_http import (
    BODY,
    FLOATS,
    INFER,
    INPUT,
    At,
    ask,
    connect,
    read_response,
)
from tests.support.gateway.gateway_site import GatewaySite, gateway_site


async def test_every_route_has_an_endpoint() -> None:
    async with gateway_site(console=True, openai_api=True) as site:
        assert set(site.service._http_front._handlers) == set(ENDPOINTS)


async def test_a_body_beyond_the_limit_is_refused() -> None:
    more = "of 100000 bytes. Use --http-max-input-size to increase the limit."
    texts = {
        None: f"request JSON size of 100001 bytes exceeds the maximum allowed input size {more}",
        "0": "Raw input has a byte_size (100001 bytes) that exceeds the maximum allowed value "
        + more,
        # No length at all.
        "x": f"request JSON size of 100001 bytes exceeds the maximum allowed input size {more}",
    }
    async with gateway_site(http_max_input_size=100_000) as site:
        for length, text in texts.items():
            headers = {} if length is None else {"Inference_Header_Content_Length": length}
            response = await ask(site, "POST", INFER, bytes(100_001), **headers)
            assert (response.status, json.loads(response.body)) == (400, {"error": text})
        reader, writer = await connect(site)
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        head += "Inference-Header-Content-Length: 0\r\n\r\n"
        writer.write(head.encode() + b"%x\r\n%b\r\n" % (100_001, bytes(100_001)))
        assert json.loads((await read_response(reader))[1]) == {"error": texts["0"]}
        writer.close()
        other = await ask(
            site,
            "POST",
            "/v2/repository/index",
            bytes(100_001),
            Inference_Header_Content_Length="9",
        )
        assert (other.status, json.loads(other.body)) == (400, {"error": texts[None]})


@pytest.mark.parametrize("chunked", [False, True])
async def test_binary_tensors_may_be_larger_than_the_limit(chunked: bool) -> None:
    size = 200_000
    tensor = {**INPUT, "shape": [size // 4], "parameters": {"binary_data_size": size}}
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    padded = header + b" " * 100_001
    async with gateway_site(http_max_input_size=100_000) as site:
        for text, status in ((header, 200), (padded, 400)):
            body = text + FLOATS * (size // len(FLOATS))
            lines = [
                f"POST {INFER} HTTP/1.1",
                "Host: x",
                f"Inference-Header-Content-Length: {len(text)}",
                "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}",
            ]
            reader, writer = await connect(site)
            sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + sent)
            head, content = await read_response(reader)
            writer.close()
            assert head.startswith(b"HTTP/1.1 %d " % status)
            if status == 200:
                assert content.endswith(body[-size:])
            else:
                assert json.loads(content) == {
                    "error": f"request JSON size of {len(padded)} bytes exceeds the maximum allowed"
                    " input size of 100000 bytes. Use --http-max-input-size to increase the limit."
                }


async def test_a_body_with_binary_tensors_is_at_most_as_large_as_a_message() -> None:
    async with gateway_site(http_max_input_size=1000, grpc_max_input_size=2000) as site:
        reader, writer = await connect(site)
        lines = [f"POST {INFER} HTTP/1.1", "Host: x", "Inference-Header-Content-Length: 9"]
        writer.write("\r\n".join([*lines, "Content-Length: 2001", "", ""]).encode())
        head, content = await read_response(reader)
        writer.close()
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(content) == {
        "error": "request size of 2001 bytes with binary tensors exceeds the maximum allowed value"
        " of 2000 bytes. Use --grpc-max-input-size to increase the limit."
    }


@pytest.mark.parametrize("large", [False, True])
async def test_inputs_in_json_beyond_the_limit_are_refused(large: bool) -> None:
    # A decoder process decodes large texts.
    count = LARGE_BYTES if large else 1000
    body = json.dumps({"inputs": [{**INPUT, "shape": [count], "data": [0] * count}]}).encode()
    async with gateway_site(http_max_input_size=len(body)) as site:
        for _ in range(2):
            response = await ask(site, "POST", INFER, body)
            assert (response.status, json.loads(response.body)) == (
                400,
                {
                    "error": f"JSON input '{INPUT['name']}' has a byte_size ({count * 4} bytes)"
                    f" that exceeds the maximum allowed value of {len(body)} bytes."
                    " Use --http-max-input-size to increase the limit."
                },
            )


async def test_an_unknown_coding_is_refused_with_the_known_ones(site: GatewaySite) -> None:
    response = await ask(site, "POST", INFER, BODY, Content_Encoding="br")
    assert response.status == 501
    assert b"Accept-Encoding: gzip, deflate\r\n" in response.head


async def test_responses_are_compressed_as_the_client_asks(site: GatewaySite) -> None:
    accepts = {"Accept_Encoding": "gzip"}
    packed = gzip.compress(BODY)
    response = await ask(site, "POST", INFER, packed, Content_Encoding="gzip", **accepts)
    assert b"Content-Encoding: gzip\r\n" in response.head
    assert json.loads(gzip.decompress(response.body))["outputs"][0]["data"] == [1, 2]
    failed = await ask(site, "POST", INFER, b"{", **accepts)
    assert (failed.status, b"Content-Encoding" in failed.head) == (500, False)


async def test_large_bodies_are_compressed_beside_the_loop(site: GatewaySite) -> None:
    large = json.dumps({"inputs": [{**INPUT, "shape": [20000], "data": [0] * 20000}]}).encode()
    response = await ask(site, "POST", INFER, large, Accept_Encoding="deflate")
    assert len(json.loads(zlib.decompress(response.body))["outputs"][0]["data"]) == 20000


async def test_a_disconnect_cancels_the_request(site: GatewaySite) -> None:
    _, writer = await connect(site)
    head = f"POST /v2/models/hold/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n"
    writer.write(head.encode() + BODY)
    held = await site.scheduler.next_held()
    writer.close()
    assert await asyncio.wait_for(site.scheduler.cancelled.get(), 5) == held.id
    # A response that comes all the same is dropped and does no harm.
    site.scheduler.link.send(site.scheduler.echo(held))
    assert (await ask(site, "POST", INFER, BODY)).status == 200


async def test_readiness_follows_the_scheduler(site: GatewaySite) -> None:
    site.scheduler.ready = False
    response = await ask(site, "GET", "/v2/health/ready")
    assert (response.status, response.body) == (400, b"")
    assert (await ask(site, "GET", "/v2/health/live")).status == 200
    site.scheduler.ready = True
    site.scheduler.link.close()
    while (await ask(site, "GET", "/v2/health/ready")).status != 400:
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", ["my model", "modèle", "50%?#"])
async def test_names_that_clients_quote(name: str) -> None:
    """As NVIDIA's client does with each."""
    path = f"/v2/models/{quote(name, safe='')}"
    managed: dict[str, Any] = {"allow_sagemaker": True, "sagemaker_port": 0}
    managed["sagemaker_default_model"] = name
    managed |= {"allow_vertex_ai": True, "vertex_ai_port": 0, "vertex_ai_default_model": name}
    async with gateway_site(**managed) as site:
        site.scheduler.models = (name,)
        assert (await ask(site, "GET", f"{path}/ready")).status == 200
        assert json.loads((await ask(site, "GET", f"{path}/config")).body)["name"] == name
        # The second one is of a known target.
        for _ in range(2):
            response = await ask(site, "POST", f"{path}/infer", BODY)
            assert json.loads(response.body)["model_name"] == name
        ports = site.service.managed_addresses
        for port, target in (("sagemaker", "/invocations"), ("vertex-ai", "/predict")):
            response = await ask(At(ports[port]), "POST", target, BODY)
            assert (response.status, json.loads(response.body)["model_name"]) == (200, name)
        unknown = await ask(site, "POST", "/v2/models/my%20other/infer", BODY)
        assert b"unknown model: 'my other'" in unknown.body


async def test_a_compressed_body_of_several_members_is_read_whole() -> None:
    middle = len(BODY) // 2
    body = gzip.compress(BODY[:middle]) + gzip.compress(BODY[middle:])
    async with gateway_site() as site:
        response = await ask(site, "POST", INFER, body, content_encoding="gzip")
        assert json.loads(response.body)["outputs"][0]["data"] == [1, 2]
