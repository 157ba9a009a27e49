"""Handlers of the console's routes: the page, a single document, and a stream of changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nereid.core.errors import NereidError, NotFound, http_status
from nereid.rpc.net.address import client_of
from nereid_gateway.core.access.principal import principal_of
from nereid_gateway.core.retry_hints import retry_line
from nereid_gateway.extras.console.hub import Console
from nereid_gateway.extras.console.permissions import limiting, permissions
from nereid_gateway.extras.console.queries import view_of
from nereid_gateway.extras.console.static_files import INDEX, SAFE_HEADERS
from nereid_gateway.server.call import JSON, TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid.facts import document
    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.console.hub import ConsoleHub
    from nereid_gateway.extras.console.static_files import StaticFile
    from nereid_gateway.guards.policy.call_policy import CallPolicy
    from nereid_gateway.server.call import HttpCall

_EVENTS: Final = b"text/event-stream; charset=utf-8"
_FRESH: Final = SAFE_HEADERS + b"Cache-Control: no-store\r\n"
# X-Accel-Buffering keeps proxies from buffering events.
_STREAMED: Final = _FRESH + b"X-Accel-Buffering: no\r\n"


class ConsoleEndpoints:
    """Handlers of the console's routes."""

    def __init__(
        self, hub: ConsoleHub, policy: CallPolicy, static: Mapping[str, StaticFile]
    ) -> None:
        self._hub = hub
        self._policy = policy
        self._static = static

    def page(self, call: HttpCall, route: Route) -> None:
        """Respond with the page or one of its files. This needs no rights: they have no facts."""
        file = self._static.get(route.file or INDEX)
        if file is None:
            call.fail(404, "Not Found", TEXT, SAFE_HEADERS)
        elif file.etag in call.headers.get(b"if-none-match", b""):
            call.respond_not_modified(file.lines)
        else:
            call.respond(200, (file.body,), file.content_type, file.lines)

    async def facts(self, call: HttpCall, _route: Route) -> None:
        """Respond with one document of facts."""
        try:
            call.respond(200, (await self._facts(call),), JSON, _FRESH)
        except NereidError as error:
            _fail(call, error)

    async def _facts(self, call: HttpCall) -> bytes:
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def send(_event: bytes, data: bytes) -> None:
            if not reply.done():
                reply.set_result(data)

        def end() -> None:
            if not reply.done():
                reply.set_exception(NotFound("the gateway is stopping, or your rights changed"))

        console = self._console(call, send, end)
        self._hub.open(console)
        try:
            return await reply
        finally:
            self._hub.close(console)

    def stream(self, call: HttpCall, _route: Route) -> None:
        """Respond with server-sent events: first a snapshot, then patches that update it."""

        def send(event: bytes, data: bytes) -> None:
            call.send_chunk(b"event: %b\ndata: %b\n\n" % (event, data))

        try:
            console = self._console(call, send, call.end_stream)
            self._hub.open(console)
        except NereidError as error:
            _fail(call, error)
            return

        def on_flow_control(paused: bool) -> None:
            console.paused = paused

        call.on_flow_control = on_flow_control
        call.on_cancel = lambda: self._hub.close(console)
        call.keepalive_chunk = b":\n\n"
        call.begin_stream(200, _EVENTS, _STREAMED)

    def _console(
        self, call: HttpCall, send: Callable[[bytes, bytes], None], end: Callable[[], None]
    ) -> Console:
        principal, policy = principal_of(call.sender), self._policy
        grant = None if principal is None else principal.grant

        def allowed() -> document.Permissions | None:
            # The view depends on the client's rights, so the console ends when these change.
            if principal is not None and principal.grant is not grant:
                return None
            return permissions(principal, policy, call)

        view = view_of(call.target, limiting(principal))
        client = client_of(call.peer) if principal is None else principal
        return Console(client, view, allowed, send, end=end)


def _fail(call: HttpCall, error: NereidError) -> None:
    call.fail(http_status(error.code), error.message, extra=_FRESH + retry_line(error))
