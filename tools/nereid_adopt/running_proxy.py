"""The proxy's listening ports."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from nereid.comparison.process import ReportProcess
from nereid.core.errors import Unavailable
from nereid.rpc.net.listener import listen
from nereid_adopt.calls.traffic import Side
from nereid_adopt.forecast.control_calls import compare_control_calls
from nereid_adopt.forecast.known_differences import explain
from nereid_adopt.proxy.grpc_calls import make_call
from nereid_adopt.proxy.grpc_client import GrpcClient
from nereid_adopt.proxy.http2_transport import StreamProtocol
from nereid_adopt.proxy.http_client import HttpClientConnection
from nereid_adopt.proxy.recorder import Recorder
from nereid_adopt.proxy.site import Site

if TYPE_CHECKING:
    from nereid.rpc.net.listener import Listener
    from nereid.rpc.net.tls_files import Tls
    from nereid_adopt.copies.process import CopyOptions
    from nereid_perf.endpoint import Endpoint

FORMAT: Final = "nereid.adopt/1"
_TIMER_S: Final = 1.0
_RESTART_S: Final = 1.0
_CHECKPOINT_S: Final = 1.0
# So old may the comparison of control calls be in a report.
_CONTROL_CALLS_S: Final = 30.0

_log = logging.getLogger(__name__)


class Proxy:
    """Both ports, with the process of copies behind them."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        options: CopyOptions,
        *,
        max_queued_bytes: int,
        max_copied_bytes: int,
        max_held_bytes: int = 256 << 20,
        http_tls: Tls | None = None,
        grpc_tls: Tls | None = None,
    ) -> None:
        """Create the proxy; may raise OSError. The TLS settings are those of its own ports."""
        self._process = ReportProcess(
            "nereid_adopt.copies", options, max_queued_bytes=max_queued_bytes
        )
        self.site = Site(
            options.http_addresses,
            options.grpc_addresses,
            Recorder(self._process),
            max_copied_bytes=max_copied_bytes,
            max_held_bytes=max_held_bytes,
            http_tls=_client_tls(options.endpoints("http")),
            grpc_tls=_client_tls(options.endpoints("grpc")),
        )
        self._http_tls = http_tls
        self._grpc_tls = grpc_tls
        self._http_endpoints = options.endpoints("http")
        self._control_calls: asyncio.Task[dict[str, Any]] | None = None
        self._control_calls_at = 0.0
        self._is_over = threading.Event()
        self._listeners: list[Listener] = []
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None

    async def open(self, http_address: str, grpc_address: str) -> tuple[str, str]:
        """Listen; return both addresses. Raises OSError."""
        await self._process.start()
        self._watching = asyncio.ensure_future(self._watch_process())
        site = self.site
        http = await listen(
            lambda: cast("asyncio.Protocol", HttpClientConnection(site)),
            http_address,
            tls=self._http_tls,
        )
        self._listeners.append(http)
        grpc = await listen(
            lambda: GrpcClient(site, make_call).make_protocol(), grpc_address, tls=self._grpc_tls
        )
        self._listeners.append(grpc)
        self._on_timer()
        return http.address, grpc.address

    async def document(self) -> dict[str, Any]:
        """Return the report."""
        recorder = self.site.recorder
        control_calls = await asyncio.shield(self.compare_control_calls())
        try:
            comparison = await self._process.document()
            error = ""
        except Unavailable as unavailable:
            comparison, error = {}, unavailable.message
        unexplained = sum(not found["known"] for found in control_calls["differences"])
        for model in comparison.get("models", ()):
            for difference in model["differences"]:
                texts = (example["difference"] for example in difference["examples"])
                title = explain(difference["kind"], difference["name"], next(texts, ""))
                difference["known"] = title
                unexplained += not title
        return {
            "format": FORMAT,
            "weight": self.site.traffic.weight,
            "copies": self.site.traffic.copied_percent,
            "open_sequences": len(self.site.traffic.open_sequences),
            "responses": {side.name.lower(): recorder.responses[side] for side in Side},
            "failed_over": recorder.failovers,
            "failed": recorder.failures,
            "not_sampled": recorder.not_sampled,
            "not_copied": [
                {"model": model, "reason": reason, "count": count}
                for (model, reason), count in sorted(recorder.not_copied.items())
            ],
            "changes": [
                {"call": name, "same_outcome": ok, "count": count}
                for (name, ok), count in sorted(recorder.changes.items())
            ],
            "control_calls": control_calls,
            "comparison": comparison,
            "unexplained": unexplained,
            "unavailable": error,
        }

    async def close(self) -> None:
        """Close all ports and connections, and end the process of copies."""
        self.end_control_calls()
        if self._timer is not None:
            self._timer.cancel()
        for listener in self._listeners:
            listener.close()
        for connection in tuple(self.site.connections):
            connection.abort()
        self.site.regions.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._process.close()

    def compare_control_calls(self) -> asyncio.Task[dict[str, Any]]:
        """Return the last comparison, or begin another one if it is old."""
        now = asyncio.get_running_loop().time()
        if self._control_calls is None or (
            self._control_calls.done()
            and now - self._control_calls_at > _CONTROL_CALLS_S
            and not self._is_over.is_set()
        ):
            self._control_calls_at = now
            self._control_calls = asyncio.ensure_future(
                asyncio.to_thread(compare_control_calls, *self._http_endpoints, self._is_over)
            )
        return self._control_calls

    def end_control_calls(self) -> None:
        """Ask the servers no more; the next report has the last comparison."""
        self._is_over.set()

    async def _watch_process(self) -> None:
        """Take checkpoints, and restart the process when it dies."""
        while True:
            ended = asyncio.ensure_future(self._process.wait_ended())
            while not ended.done():
                await asyncio.wait({ended}, timeout=_CHECKPOINT_S)
                with suppress(Unavailable):
                    await self._process.checkpoint()
                self.site.recorder.on_checkpoint()
            # First of all, so that it gets no more copies.
            await self._process.close()
            self.site.recorder.on_process_lost(self.site.traffic.open_sequences)
            _log.warning("the process of copies died; restarting it")
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


def _client_tls(endpoints: tuple[Endpoint, Endpoint]) -> tuple[Tls | None, Tls | None]:
    old, new = (endpoint.client_tls() for endpoint in endpoints)
    return old, new
