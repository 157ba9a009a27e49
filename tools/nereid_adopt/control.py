"""The socket over which `nereid adopt turn`, `back` and `report` reach the running proxy.

A line of JSON is a question, a line of JSON the reply. Only this user may connect.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import InvalidArgument, NereidError, Unavailable
from nereid.core.files.json_document import parse_document
from nereid.rpc.net.binding import UnixClaim, bind_unix
from nereid_adopt.calls.traffic import MAX_WEIGHT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_MAX_LINE: Final = 1 << 20
_TIMEOUT_S: Final = 60.0


def default_path() -> str:
    """Return the socket's path for this user."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/tmp/nereid-{os.getuid()}"  # noqa: S108
    return str(Path(runtime) / "adopt.sock")


class ControlSocket:
    """The proxy's end. turn: sets the weight. document: returns the report."""

    def __init__(
        self,
        turn: Callable[[int], None],
        document: Callable[[], Awaitable[dict[str, Any]]],
    ) -> None:
        self._turn = turn
        self._document = document
        self._claim: UnixClaim | None = None
        self._server: asyncio.Server | None = None

    async def open(self, path: str) -> None:
        """Listen at a path; raise OSError if another proxy does."""
        folder = Path(path).parent
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid not in {os.getuid(), 0}:
            # Its owner could put another socket in the place of ours.
            raise PermissionError(f"{folder} belongs to another user")
        claim = UnixClaim(path)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=bind_unix(path, private=True), limit=_MAX_LINE
        )
        claim.bound()
        self._claim = claim

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        if self._claim is not None:
            self._claim.release()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        not_a_line = (asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        with suppress(OSError, ValueError, *not_a_line):
            line = await reader.readuntil(b"\n")
            try:
                reply = await self._reply(parse_document(line))
            except NereidError as error:
                reply = {"refused": error.message}
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _reply(self, question: Any) -> dict[str, Any]:
        match question:
            case {"turn": int(weight)} if type(weight) is int and 0 <= weight <= MAX_WEIGHT:
                self._turn(weight)
                return {"weight": weight}
            case {"report": True}:
                return await self._document()
        raise InvalidArgument("expected a weight from 0 to 100, or a report")


def ask_proxy(path: str, question: dict[str, Any]) -> dict[str, Any]:
    """Ask the running proxy, and return its reply. Raises Unavailable, InvalidArgument."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(path)
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as file:
                reply: dict[str, Any] = json.loads(file.readline())
    except (OSError, ValueError) as error:
        raise Unavailable(f"no proxy can be reached at {path}: {error}") from error
    if "refused" in reply:
        raise InvalidArgument(str(reply["refused"]))
    return reply
