"""The proxy's listening ports."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, cast

from nereid.comparison.process import ReportProcess
from nereid.core.errors import Unavailable
from nereid.rpc.net.listener import listen
from nereid_adopt.calls.traffic import Side
from nereid_adopt.forecast.known_differences import explain
from nereid_adopt.proxy.grpc_calls import GrpcClient
from nereid_adopt.proxy.http2_transport import StreamProtocol
from nereid_adopt.proxy.http_client import HttpClientConnection
from nereid_adopt.proxy.recorder import Recorder
from nereid_adopt.proxy.site import Site

if TYPE_CHECKING:
    from nereid.rpc.net.listener import Listener
    from nereid_adopt.copies.process import CopyOptions

FORMAT: Final = "nereid.adopt/1"
_TIMER_S: Final = 1.0
_RESTART_S: Final = 1.0

_log = logging.getLogger(__name__)


class Proxy:
    """Both ports, with the process of copies behind them."""

    def __init__(
        self, options: CopyOptions, *, max_queued_bytes: int, max_copied_bytes: int
    ) -> None:
        self._process = ReportProcess(
            "nereid_adopt.copies", options, max_queued_bytes=max_queued_bytes
        )
        self.site = Site(
            options.http_addresses,
            options.grpc_addresses,
            Recorder(self._process),
            max_copied_bytes=max_copied_bytes,
        )
        self._listeners: list[Listener] = []
        self._timer: asyncio.TimerHandle | None = None
        self._restarting: asyncio.Task[None] | None = None

    async def open(self, http_address: str, grpc_address: str) -> tuple[str, str]:
        """Listen; return both addresses. Raises OSError."""
        await self._process.start()
        self._restarting = asyncio.ensure_future(self._restart_process())
        site = self.site
        http = await listen(
            lambda: cast("asyncio.Protocol", HttpClientConnection(site)), http_address
        )
        self._listeners.append(http)
        grpc = await listen(lambda: GrpcClient(site).make_protocol(), grpc_address)
        self._listeners.append(grpc)
        self._on_timer()
        return http.address, grpc.address

    async def document(self) -> dict[str, Any]:
        """Return the report."""
        recorder = self.site.recorder
        try:
            comparison = await self._process.document()
            error = ""
        except Unavailable as unavailable:
            comparison, error = {}, unavailable.message
        unexplained = 0
        for model in comparison.get("models", ()):
            for difference in model["differences"]:
                texts = (example["difference"] for example in difference["examples"])
                title = explain(difference["kind"], difference["name"], next(texts, ""))
                difference["known"] = title
                unexplained += not title
        return {
            "format": FORMAT,
            "weight": self.site.traffic.weight,
            "open_sequences": len(self.site.traffic.open_sequences),
            "responses": {side.name.lower(): recorder.responses[side] for side in Side},
            "failed_over": recorder.failovers,
            "failed": recorder.failures,
            "not_copied": [
                {"model": model, "reason": reason, "count": count}
                for (model, reason), count in sorted(recorder.not_copied.items())
            ],
            "changes": [
                {"call": name, "same_outcome": ok, "count": count}
                for (name, ok), count in sorted(recorder.changes.items())
            ],
            "comparison": comparison,
            "unexplained": unexplained,
            "unavailable": error,
        }

    async def close(self) -> None:
        """Close all ports and connections, and end the process of copies."""
        if self._timer is not None:
            self._timer.cancel()
        for listener in self._listeners:
            listener.close()
        for connection in tuple(self.site.connections):
            connection.abort()
        self.site.regions.close()
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        await self._process.close()

    async def _restart_process(self) -> None:
        while True:
            await self._process.wait_ended()
            self.site.recorder.on_process_lost(self.site.traffic.open_sequences)
            _log.warning("the process of copies died; restarting it")
            await self._process.close()
            await asyncio.sleep(_RESTART_S)
            try:
                await self._process.start()
            except OSError as error:
                _log.error("the process of copies does not start: %s", error)

    def _on_timer(self) -> None:
        for connection in tuple(self.site.connections):
            if isinstance(connection, StreamProtocol):
                connection.on_timer()
        self._timer = asyncio.get_running_loop().call_later(_TIMER_S, self._on_timer)
