"""Exchange of models' counts among the gateways of a group.

Counters then do not decrease when a client reads them from another gateway.
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
# The other gateway calls the schedulers before it responds.
_TIMEOUT_S: Final = 2.5


class GroupCounts:
    """One gateway's part in the exchange. Call start() once and close() once."""

    def __init__(
        self, group: GatewayGroup, respond: Callable[[], Awaitable[pb.CountsResponse]]
    ) -> None:
        """Find the group's sockets. respond: returns this gateway's counts."""
        self._respond = respond
        self._own, *others = (
            _socket(group, (group.number + offset) % group.size) for offset in range(group.size)
        )
        self._others = [rpc.SocketChannel(f"unix:{path}") for path in others]
        self._server = rpc.Server(rpc.Handlers(async_unary={_PATH: self._handle}))

    async def start(self) -> None:
        """Serve this gateway's counts to the others. Raises OSError if binding fails."""
        await self._server.listen(f"unix:{self._own}")

    async def close(self) -> None:
        """Close the channels and the server."""
        for channel in self._others:
            await channel.close()
        await self._server.close()

    async def read(self) -> list[pb.CountsResponse]:
        """Return the other gateways' counts, as far as the gateways respond now."""
        responses = await asyncio.gather(*map(self._ask, self._others))
        return [response for response in responses if response is not None]

    async def _ask(self, channel: rpc.Channel) -> pb.CountsResponse | None:
        with contextlib.suppress(rpc.RpcError):
            response = await channel.unary(_PATH, b"", timeout_s=_TIMEOUT_S)
            return pb.CountsResponse.FromString(response)
        return None

    async def _handle(self, _call: rpc.Call, _message: bytes) -> bytes:
        return (await self._respond()).SerializeToString()


def _socket(group: GatewayGroup, number: int) -> Path:
    return group.directory / f"counts-{number}.sock"
