"""A gateway in front of two schedulers over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import tritonclient.http.aio

from nereid.core.wire.messages import CachedModels, Ownership
from nereid.mesh_routing.several.scheduler_channels import SchedulerChannels
from nereid.rpc import SocketChannel
from nereid.rpc.net.scheduler_addresses import parse_addresses
from nereid_gateway.service import GatewayService
from tests.support.gateway.gateway_site import settings
from tests.support.gateway.scheduler_server import SchedulerServer, post


def owns(name: str, epoch: int, *models: str) -> tuple[CachedModels, Ownership]:
    return CachedModels(()), Ownership(name, epoch, models)


class Site:
    """Of two schedulers, the first has "echo" and the second has "hold"."""

    def __init__(self, directory: Path) -> None:
        self.addresses = [f"unix:{directory}/{name}" for name in ("first", "second")]
        self.first = SchedulerServer(self.addresses[0], *owns("first", 1, "echo"))
        self.second = SchedulerServer(self.addresses[1], *owns("second", 1, "hold"))
        specs = parse_addresses(",".join(self.addresses))
        self.mesh = SchedulerChannels(specs, SocketChannel)
        self.gateway = GatewayService(settings(), mesh=self.mesh)

    @property
    def http(self) -> str:
        assert self.gateway.http_address is not None
        return self.gateway.http_address


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    it = Site(directory)
    for scheduler in (it.first, it.second):
        await scheduler.start()
    await it.gateway.start()
    try:
        for scheduler in (it.first, it.second):
            await asyncio.wait_for(scheduler.linked.wait(), 10)
        yield it
    finally:
        await it.gateway.drain(1)
        await it.mesh.close()
        for scheduler in (it.first, it.second):
            await scheduler.stop()


async def test_control_calls_go_to_whoever_is_connected(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        assert (await post(it.http, "echo"))[0] == 200
        async with tritonclient.http.aio.InferenceServerClient(it.http) as client:
            assert await client.is_server_ready()
            await it.first.stop()
            assert await client.is_server_ready()
            assert (await client.get_model_metadata("echo"))["name"] == "echo"
            await it.second.stop()
            assert not await client.is_server_ready()
            assert await client.is_server_live()
        assert len(it.mesh.channels()) == 2
        await it.gateway.drain(1)
        # A call that comes last, such as that of a metrics page.
        await it.mesh.close()
        assert it.mesh.channels() == []
