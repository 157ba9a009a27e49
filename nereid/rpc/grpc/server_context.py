"""What all connections of one server share: routes, known heads, deadlines, time and tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.rpc.grpc.server_connection import ServerCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.grpc.call import AsyncUnaryHandler, Call
    from nereid.rpc.grpc.deadlines import Deadlines
    from nereid.rpc.grpc.dispatch import Route
    from nereid.rpc.grpc.request_head import RequestHead
    from nereid.rpc.http2.header_decoder import Field


class Service:
    """What all connections of a server share."""

    def __init__(
        self,
        routes: dict[str, Route],
        deadlines: Deadlines[ServerCall],
        now: Callable[[], float],
        spawn: Callable[[Call, AsyncUnaryHandler, bytes], None],
    ) -> None:
        self.routes = routes
        self.heads: dict[tuple[Field | None, ...], RequestHead] = {}
        self.deadlines = deadlines
        self.now = now
        self.spawn = spawn
        # The level at which answers of compressible methods are compressed.
        self.compression = "none"
        self.compressing_call = ServerCall
        # Called when the earliest deadline changed.
        self.arm: Callable[[], None] = _nothing


def _nothing() -> None:
    pass
