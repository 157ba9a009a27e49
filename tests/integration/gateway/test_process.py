"""The gateway as a process of its own, and its link to a scheduler over a real socket."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from nereid.mesh_routing.access import OneScheduler, dial_scheduler
from nereid.rpc import SocketChannel
from nereid_gateway.service import GatewayService
from tests.support.gateway.gateway_site import GatewaySite, settings
from tests.support.gateway.scheduler_server import SchedulerServer, post


async def test_an_unreachable_scheduler_fails_requests(tmp_path: Path) -> None:
    channel = SocketChannel(f"unix:{tmp_path}/none")
    gateway = GatewayService(
        settings(reconnect_timeout_secs=0.05), mesh=OneScheduler(dial_scheduler(channel), channel)
    )
    await gateway.start()
    assert gateway.http_address is not None
    status, body = await post(gateway.http_address, "echo")
    assert (status, body) == (503, b'{"error":"the scheduler cannot be reached"}')
    async with tritonclient.http.aio.InferenceServerClient(gateway.http_address) as client:
        assert await client.is_server_live()
        assert not await client.is_server_ready()
        with pytest.raises(InferenceServerException) as caught:
            await client.get_model_metadata("echo")
        assert str(caught.value) == "[503] the scheduler cannot be reached"
    await gateway.drain(1)
    await channel.close()


async def test_a_draining_gateway_finishes_pending_http_requests(site: GatewaySite) -> None:
    held = asyncio.ensure_future(post(site.http, "hold"))
    request = await site.scheduler.next_held()
    drained = asyncio.ensure_future(site.service.drain(10))
    await asyncio.sleep(0)
    # Infers still run, and readiness says what is going on.
    assert (await post(site.http, "echo"))[0] == 200
    host, _, port = site.http.rpartition(":")
    for target in ("live", "ready"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /v2/health/{target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        response = await asyncio.wait_for(reader.read(), 5)
        assert b" 503 " in response
        assert b'{"error":"Server exiting"}' in response
        writer.close()
    # Then they are refused, on a port that is open until the last one is done.
    while (refusal := await post(site.http, "echo"))[0] == 200:
        pass
    assert refusal[0] == 503
    assert b"Server is stopping, scheduler for model has stopped accepting" in refusal[1]
    site.scheduler.link.send(site.scheduler.echo(request))
    assert (await held)[0] == 200
    await drained
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection(host, int(port))


async def test_requests_that_outlast_the_drain_fail(site: GatewaySite) -> None:
    held = asyncio.ensure_future(post(site.http, "hold"))
    await site.scheduler.next_held()
    await site.service.drain(0.05)
    # As Triton says when its grace is over.
    text = "Server is stopping, scheduler for model has stopped accepting new inference requests"
    assert await held == (503, f'{{"error":"{text}"}}'.encode())


async def run(*argv: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "nereid_gateway",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-port=0",
        *argv,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("taken", "engine"),
    [("http", "nereid"), ("grpc", "nereid"), ("metrics", "nereid"), ("grpc", "grpcio")],
)
async def test_a_port_in_use_is_one_clear_line_and_code_2(taken: str, engine: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = dict.fromkeys(("http", "grpc", "metrics"), 0) | {taken: other.getsockname()[1]}
        flags = [f"--{name}-port={port}" for name, port in ports.items()]
        process = await run(*flags, f"--grpc-engine={engine}")
        _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    lines = [line for line in errors.decode().splitlines() if "cannot listen" in line]
    assert len(lines) == 1


@pytest.mark.slow
async def test_the_process_serves_and_ends_on_a_signal(tmp_path: Path) -> None:
    scheduler = SchedulerServer(f"unix:{tmp_path}/s")
    await scheduler.start()
    process = await run("--http-port=0", "--grpc-port=0", f"--scheduler-address=unix:{tmp_path}/s")
    assert process.stderr is not None
    line: Any = b""
    while b"serving HTTP on " not in line:
        line = await asyncio.wait_for(process.stderr.readline(), 20)
        assert line
    address = line.decode().split("serving HTTP on ")[1].split(",")[0]
    assert (await post(address, "echo"))[0] == 200
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 10) == 0
    await scheduler.stop()
