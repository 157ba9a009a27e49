"""A cache of the bytes of requests that are sent repeatedly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_perf.request import Request

_MOST: Final = 256
# Larger requests would together take too much memory.
_MAX_BYTES: Final = 1 << 16


class KeptBytes:
    """Maps a request's id() to its bytes; keeps the request, so that no other gets its id()."""

    def __init__(self, make: Callable[[Request], bytes]) -> None:
        self._make = make
        self._kept: dict[int, tuple[Request, bytes]] = {}

    def bytes_of(self, request: Request) -> bytes:
        """Return a request's bytes; the first call makes them."""
        entry = self._kept.get(id(request))
        if entry is not None:
            return entry[1]
        data = self._make(request)
        if len(data) <= _MAX_BYTES:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            self._kept[id(request)] = request, data
        return data
