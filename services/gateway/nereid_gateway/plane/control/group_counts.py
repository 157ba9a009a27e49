"""What the gateways of a group know of models' counts, for one another: whichever of them a client
asks, it is shown no less than before.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from nereid import rpc
from nereid.core.methods import SCHEDULER
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from nereid.process.gateway_group import GatewayGroup

_PATH: Final = SCHEDULER + "Counts"
# For another gateway's response; it asks the schedulers first.
_TIMEOUT_S: Final = 2.5


class GroupCounts:
    """One gateway's part in it. start() once, close() once."""

    def __init__(
        self, group: GatewayGroup, respond: Callable[[], Awaitable[pb.CountsResponse]]
    ) -> None:
        """respond: what this gateway knows."""
        self._respond = respond
        self._own, *others = (
            _socket(group, (group.number + each) % group.size) for each in range(group.size)
        )
        self._others = [rpc.SocketChannel(f"unix:{each}") for each in others]
        self._server = rpc.Server(rpc.Handlers(async_unary={_PATH: self._handle}))

    async def start(self) -> None:
        """Serve what this gateway knows to the others; raises OSError."""
        await self._server.listen(f"unix:{self._own}")

    async def close(self) -> None:
        for channel in self._others:
            await channel.close()
        await self._server.close()

    async def read(self) -> list[pb.CountsResponse]:
        """What the others know; those that are not there just now are left out."""
        found = await asyncio.gather(*map(self._ask, self._others))
        return [each for each in found if each is not None]

    async def _ask(self, channel: rpc.Channel) -> pb.CountsResponse | None:
        with contextlib.suppress(rpc.RpcError):
            response = await channel.unary(_PATH, b"", timeout_s=_TIMEOUT_S)
            return pb.CountsResponse.FromString(response)
        return None

    async def _handle(self, _call: rpc.Call, _message: bytes) -> bytes:
        return (await self._respond()).SerializeToString()


def _socket(group: GatewayGroup, number: int) -> Path:
    return group.directory / f"counts-{number}.sock"
