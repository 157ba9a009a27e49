"""Counts refusals and logs them: once per address, kind and interval, and so many in all."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from nereid.services.gateway.auth.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.services.gateway.auth.refusal import Refusal

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 60.0
# Lines in an interval: an attacker may have many addresses.
_MAX_LINES: Final = 100


class RefusalLog:
    """The refusals of one gateway."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # Of all refusals, for the metrics.
        self.counts: Counter[Reason] = Counter(dict.fromkeys(Reason, 0))
        self._logged: set[tuple[str, Reason]] = set()
        self._began_at = now()
        self._silent = 0

    def add(self, refusal: Refusal, peer: str, detail: str = "") -> None:
        """Count a refusal of a call from peer (host:port); detail: what only the log says."""
        self.counts[refusal.reason] += 1
        now = self._now()
        if now - self._began_at > _INTERVAL_S:
            self._begin_interval(now)
        address = peer.rpartition(":")[0] or peer
        event = address, refusal.reason
        if event in self._logged or len(self._logged) >= _MAX_LINES:
            self._silent += 1
            return
        self._logged.add(event)
        text = detail or refusal.message
        _log.warning("refused a call: peer=%s reason=%s: %r", address, refusal.reason.value, text)

    def _begin_interval(self, now: float) -> None:
        if self._silent:
            _log.warning("refused %d further calls since the last report", self._silent)
        self._began_at, self._silent = now, 0
        self._logged.clear()
