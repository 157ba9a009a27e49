"""Bounds of what a store's server can make a client do: redirects, requests and bytes.

All stores' libraries send their requests by aiohttp, so that one middleware is enough.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_MAX_RESPONSES: Final = 1000
# Libraries repeat a request whose response broke off.
_MAX_RESPONSES_OF_URL: Final = 10
# A listing is kept in memory.
_MAX_FULL_RESPONSES: Final = 16
# Responses in place of an object, such as an error's document.
_MIN_RESPONSE_BYTES: Final = 1 << 16


class RedirectError(Exception):
    """A store leads to another place."""


class ExcessError(Exception):
    """A store's responses do not end."""


class Allowance:
    """Responses that one operation may still get."""

    def __init__(self, response_bytes: int) -> None:
        """Create the allowance of an operation whose responses have at most these bytes each."""
        self.response_bytes = max(response_bytes, _MIN_RESPONSE_BYTES)
        self._bytes = self.response_bytes * _MAX_FULL_RESPONSES
        self._responses: Counter[str] = Counter()

    def on_success(self, url: str) -> None:
        """Charge a response that is no error; raise ExcessError."""
        self._responses[url] += 1
        if self._responses[url] > _MAX_RESPONSES_OF_URL:
            raise ExcessError("the store's listing does not end: it repeats a page")
        if self._responses.total() > _MAX_RESPONSES:
            raise ExcessError(f"the store's listing does not end: {_MAX_RESPONSES} pages")

    def on_bytes(self, size: int) -> None:
        """Charge bytes of a response; raise ExcessError."""
        self._bytes -= size
        if self._bytes < 0:
            raise ExcessError("the store's responses are larger than any listing")


_allowance: Final[ContextVar[Allowance | None]] = ContextVar("allowance", default=None)


@contextmanager
def operation(response_bytes: int) -> Iterator[None]:
    """Bound the requests that begin inside, also those of tasks on fsspec's event loop."""
    token = _allowance.set(Allowance(response_bytes))
    try:
        yield
    finally:
        _allowance.reset(token)


class _Body:
    """An aiohttp StreamReader whose bytes are charged after decompression."""

    def __init__(self, body: Any, allowance: Allowance) -> None:
        self._body, self._allowance = body, allowance
        self._left = allowance.response_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    async def read(self, size: int = -1) -> bytes:
        if size >= 0:
            return self._charged(await self._body.read(size))
        pieces = []
        while piece := self._charged(await self._body.readany()):
            pieces.append(piece)
        return b"".join(pieces)

    def _charged(self, piece: bytes) -> bytes:
        self._left -= len(piece)
        if self._left < 0:
            raise ExcessError("the store sends more than it was asked for")
        self._allowance.on_bytes(len(piece))
        return piece


class BoundedRequests:
    """Middleware of aiohttp's client that follows no redirect and keeps to the allowance.

    A redirect leads to what only this host may reach, and takes a request's credentials there.
    """

    def __init__(self, redirect_header: str = "") -> None:
        """Create a middleware. Redirects with redirect_header are for the library to read."""
        self._redirect_header = redirect_header

    async def __call__(self, request: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
        """Return the response with a bounded body; raise RedirectError or ExcessError."""
        response = await send(request)
        try:
            if response.status in _REDIRECTS and self._redirect_header not in response.headers:
                raise RedirectError(f"the store redirects ({response.status})")
            if allowance := _allowance.get():
                if response.ok:
                    allowance.on_success(str(request.url))
                response.content = _Body(response.content, allowance)
        except BaseException:
            response.close()
            raise
        return response
