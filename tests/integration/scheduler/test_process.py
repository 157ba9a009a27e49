"""The scheduler as a process of its own, and in its gateway's process."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from nereid.core.wire.messages import CachedModels, InferResponse
from nereid.pb import kserve_pb2 as kserve
from nereid.rpc import SocketChannel, memory_links
from tests.support.scheduler.scheduler_world import LIMIT_S, World, numbers_of, request


async def test_a_gateway_in_the_same_process(mesh: World) -> None:
    await mesh.executor()
    await mesh.until_state("READY")
    gateway_end, scheduler_end = memory_links()
    mesh.service.attach(scheduler_end)
    responded: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

    def on_items(items: list[InferResponse | CachedModels]) -> None:
        for item in items:
            if isinstance(item, InferResponse):
                responded.set_result(item)

    gateway_end.on_items = on_items
    sent = request(4, 5)
    sent.id = 7
    gateway_end.send(sent)
    response = await asyncio.wait_for(responded, LIMIT_S)
    assert (response.id, numbers_of(response)) == (7, [8, 10])
    channel = SocketChannel(mesh.service.addresses[0])
    message = kserve.ServerReadyRequest().SerializeToString()
    reply = await channel.unary("/nereid.v1.Scheduler/ServerReady", message)
    assert kserve.ServerReadyResponse.FromString(reply).ready
    await channel.close()


async def start(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "nereid_scheduler", *flags, stderr=asyncio.subprocess.PIPE
    )


@pytest.mark.slow
async def test_the_process_refuses_an_impossible_address(tmp_path: Path) -> None:
    process = await start(f"--model-repository={tmp_path}", "--scheduler-address=unix:/no/such/dir")
    _, errors = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 2
    assert "--scheduler-address" in errors.decode().splitlines()[-1]


@pytest.mark.slow
async def test_the_process_starts_and_ends_on_sigterm(repository: Path) -> None:
    address = f"unix:{repository.parent / 's.sock'}"
    process = await start(f"--model-repository={repository}", f"--scheduler-address={address}")
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        while b"listening" not in (line := await process.stderr.readline()):
            assert line, "it ended"
        process.send_signal(signal.SIGTERM)
        await process.stderr.read()
        assert await process.wait() == 0
