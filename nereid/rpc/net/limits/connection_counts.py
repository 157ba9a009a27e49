"""Numbers of open connections at one port, and their limits. TLS handshakes count as well."""

# layout: not pure, uses time
# layout: not covered, needs several processes

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nereid.rpc.net.limits.shared_accepts import ConnectionShare

_log = logging.getLogger("nereid.rpc")

_LOG_INTERVAL_S: Final = 10.0
# This many connections beyond the limits may do a handshake, so that the client receives the reason
# for the refusal.
_SPARE_HANDSHAKES: Final = 64


class ConnectionCounts:
    """Numbers of connections at one port."""

    def __init__(self, what: str, limit: int | None, client_limit: int | None) -> None:
        """Create counts; None means no limit. `what` names the protocol in the log.

        client_limit does not apply to Unix sockets, whose clients have no name.
        """
        self._what = what
        self._limit = limit
        self._client_limit = client_limit
        self._open = 0
        self._handshakes = 0
        self._by_client: Counter[str] = Counter()
        # Set by listen() if other processes serve the port as well.
        self.share: ConnectionShare | None = None
        self._logged_at = -_LOG_INTERVAL_S

    def add(self, client: str, *, after_handshake: bool) -> int:
        """Count an opened connection; return by how many connections a limit is exceeded."""
        if after_handshake:
            self.end_handshake(client)
        self._open += 1
        if self.share is not None:
            self.share.set_open(self._open)
        self._by_client[client] += 1
        beyond = self._beyond(client)
        if beyond > 0:
            self._log_refusal(client)
        return beyond

    def remove(self, client: str) -> None:
        """Count a closed connection."""
        self._open -= 1
        if self.share is not None:
            self.share.set_open(self._open)
        self._uncount(client)

    def begin_handshake(self, client: str) -> bool:
        """Count a new handshake; if there are too many, do not count it and return False."""
        self._handshakes += 1
        self._by_client[client] += 1
        if self._beyond(client) <= _SPARE_HANDSHAKES:
            return True
        self._log_refusal(client)
        self.end_handshake(client)
        return False

    def end_handshake(self, client: str) -> None:
        """Stop counting a handshake that has ended."""
        self._handshakes -= 1
        self._uncount(client)

    def _uncount(self, client: str) -> None:
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    def _beyond(self, client: str) -> int:
        beyond = 0
        if self._limit is not None:
            beyond = self._open + self._handshakes - self._limit
        if self._client_limit is not None and client:
            beyond = max(beyond, self._by_client[client] - self._client_limit)
        return beyond

    def _log_refusal(self, client: str) -> None:
        now = time.monotonic()
        if now - self._logged_at < _LOG_INTERVAL_S:
            return
        self._logged_at = now
        if self._limit is not None and self._open + self._handshakes > self._limit:
            _log.warning(
                "more than %d %s connections: refusing the newest (--max-connections)",
                *(self._limit, self._what),
            )
        else:
            _log.warning(
                "more than %d %s connections of %s: refusing the newest"
                " (--max-connections-per-client)",
                *(self._client_limit, self._what, client),
            )
