"""The table of routes, held against what a gateway does: every route on every port that speaks
HTTP, with each kind of right and for pages of each origin.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nereid_gateway.core.access.api_groups import APIS
from nereid_gateway.core.routes import (
    ENDPOINTS,
    HTTP,
    METRICS,
    SAGEMAKER,
    VERTEX_AI,
    Endpoint,
)
from nereid_gateway.guards.auth.api_key import make_key
from nereid_gateway.server.browser_origins import FORGED
from tests.support.gateway.auth_config import key_entry
from tests.support.gateway.gateway_http import At, connect
from tests.support.gateway.gateway_site import GatewaySite, gateway_site

ORIGINS = {
    "a program": {},
    "its own page": {"Origin": "http://x", "Sec-Fetch-Site": "same-origin"},
    "another's page": {"Origin": "http://evil.example"},
    "another's page, newer": {"Sec-Fetch-Site": "cross-site"},
}
FOREIGN = {"another's page", "another's page, newer"}
PORTS = (HTTP, SAGEMAKER, VERTEX_AI, METRICS)
NAMES = {"model": "echo", "version": "1", "memory_kind": "system", "region": "r", "file": "main.js"}
KEYS = {api: make_key() for api in APIS}
SECRET = {"key": "secret"}


class Outcome(NamedTuple):
    status: int
    body: bytes


async def outcome(at: At, method: bytes, target: str, headers: dict[str, str]) -> Outcome:
    """The status, and the body where there is a whole one: streams do not end."""
    reader, writer = await connect(at)
    lines = [f"{method.decode()} {target} HTTP/1.1", "Host: x", "Content-Length: 2"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n{}")
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"\r\nContent-Length: (\d+)", head)
        body = await reader.readexactly(int(size[1])) if size else b""
    writer.close()
    return Outcome(int(head.split(b" ")[1]), body)


def targets(rule: Endpoint) -> Iterator[str]:
    """With and without what may be missing."""
    for template in rule.templates:
        for pattern in (r"\[.*?\]", r"[\[\]]"):
            text = re.sub(pattern, "", template)
            yield text.format(**NAMES, executor="executor-0", repository="models")


def calls(port: str) -> Iterator[tuple[Endpoint, bytes, str]]:
    """Each route with each of its methods. A managed port's redirects choose the method."""
    for rule in ENDPOINTS:
        methods = rule.methods[:1] if port == VERTEX_AI else rule.methods
        for method, target in product(methods, dict.fromkeys(targets(rule))):
            yield rule, method, target


def ports_of(site: GatewaySite) -> dict[str, At]:
    managed = site.service.managed_addresses
    assert site.service.metrics_address is not None
    return {
        HTTP: At(site.http),
        METRICS: At(site.service.metrics_address),
        **{name: At(managed[name]) for name in (SAGEMAKER, VERTEX_AI)},
    }


async def ask(at: At, port: str, method: bytes, target: str, headers: dict[str, str]) -> Outcome:
    if port == VERTEX_AI:
        redirect = {"X-Vertex-Ai-Triton-Redirect": target.removeprefix("/")}
        return await outcome(at, b"POST", "/predict", headers | redirect)
    return await outcome(at, method, target, headers)


async def walk(
    *,
    rights: dict[str, dict[str, str]],
    refuses: Any,
    console: bool,
    **settings: Any,
) -> int:
    """How many calls were as the table says. rights: headers by API, "" for any other;
    refuses(rule): whether one without that right is refused.
    """
    count = 0
    managed: dict[str, Any] = {"allow_sagemaker": True, "sagemaker_port": 0}
    managed |= {"allow_vertex_ai": True, "vertex_ai_port": 0, "metrics_address": "127.0.0.1"}
    async with gateway_site(console=console, openai_api=True, **managed, **settings) as site:
        for port, at in ports_of(site).items():
            for (rule, method, target), (origin, headers) in product(calls(port), ORIGINS.items()):
                if target.startswith("/console") and not console:
                    continue
                where = (port, method, target, origin)
                right = rights.get(rule.api, rights.get("", {}))
                got = await ask(at, port, method, target, headers | right)
                count += 1
                if port == METRICS:
                    # Only health, which is anybody's; any other target has an empty page.
                    expected = 200 if method == b"GET" else 405
                    assert (got.status, got.body) == (expected, b""), where
                elif port not in rule.ports or port == SAGEMAKER:
                    # SageMaker's port has targets of its own.
                    assert got.status == 400, where
                    assert b"no such route" in got.body, where
                elif refuses(rule):
                    assert got.status in {401, 403}, where
                    assert FORGED.encode() not in got.body, where
                elif origin in FOREIGN and method != b"GET" and (rule.is_control or console):
                    assert (got.status, FORGED.encode() in got.body) == (403, True), where
                else:
                    assert got.status not in {401, 403, 405}, (where, got)
                    assert got.body != b"Not Found", where
                    assert b"no such route" not in got.body, where
    return count


@pytest.mark.parametrize("console", [False, True])
async def test_open(console: bool) -> None:
    assert await walk(rights={}, refuses=lambda _rule: False, console=console) > 500


@pytest.mark.parametrize("allowed", [False, True])
async def test_restricted_by_a_header(allowed: bool) -> None:
    restricted = (f"{','.join(APIS)}:key=secret",)
    await walk(
        rights={"": SECRET} if allowed else {},
        refuses=lambda rule: bool(rule.api) and not allowed,
        console=True,
        http_restricted_api=restricted,
    )


async def test_closed_control_apis() -> None:
    await walk(
        rights={},
        refuses=lambda rule: rule.is_control,
        console=False,
        open_control_apis=False,
    )


@pytest.mark.parametrize("allowed", [False, True])
async def test_api_keys(tmp_path: Path, allowed: bool) -> None:
    """Each route with a key for its API alone, and with one for all others."""
    entries = [
        key_entry(api, key, *({api} if allowed else set(APIS) - {api})) for api, key in KEYS.items()
    ]
    config = tmp_path / "auth.toml"
    config.write_text("".join(entries))
    await walk(
        rights={api: {"x-api-key": key} for api, key in KEYS.items()},
        refuses=lambda rule: bool(rule.api) and not allowed,
        console=True,
        auth_config=str(config),
    )


async def test_the_start_line_says_what_a_managed_port_serves() -> None:
    settings: dict[str, Any] = {"allow_sagemaker": True, "sagemaker_port": 0}
    settings |= {"allow_vertex_ai": True, "vertex_ai_port": 0, "console": True}
    async with gateway_site(**settings) as site:
        line, ports = site.service.exposure(), ports_of(site)
        assert f"{ports[SAGEMAKER].http}: inference;" in line
        vertex = line.partition(ports[VERTEX_AI].http)[2].partition(";")[0]
        assert "inference" in vertex
        assert not any(each in vertex for each in ("trace", "log", "console"))
