"""Log lines about refused peers: at most one line per peer, kind and interval."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from nereid.rpc.net.address import host_of

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

_INTERVAL_S: Final = 60.0
_MAX_PEERS: Final = 1024


class RefusalLog:
    """Logs warnings about refusals. If there are too many peers, the others count as one peer."""

    def __init__(
        self,
        logger: logging.Logger,
        interval_s: float = _INTERVAL_S,
        max_peers: int = _MAX_PEERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._interval_s = interval_s
        self._max_peers = max_peers
        self._clock = clock
        # Key: peer and kind. Value: time of the last line, and refusals since. The oldest comes
        # first.
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def report(self, peer: str, kind: str, event: str, *details: object) -> None:
        """Log a refusal, unless the last line for this peer and kind is too recent."""
        now = self._clock()
        logged = self._logged
        while logged and next(iter(logged.values()))[0] <= now - 2 * self._interval_s:
            del logged[next(iter(logged))]
        host = host_of(peer)
        if (host, kind) not in logged and len(logged) >= self._max_peers:
            host = "(others)"
        at, count = logged.pop((host, kind), (-self._interval_s, 0))
        if now - at < self._interval_s:
            logged[host, kind] = at, count + 1
            return
        logged[host, kind] = now, 0
        if count:
            event += f" (and {count} times since the last such line)"
        self._logger.warning(event, peer, *details)
