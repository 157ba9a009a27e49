"""Counts refusals by reason, and logs them: once per address, reason and interval."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from nereid.observability.refusal_log import RefusalLog
from nereid_gateway.core.access.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_gateway.core.access.refusal import Refusal

_log = logging.getLogger(__name__)


class AccessRefusals:
    """The refusals of one gateway."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._log = RefusalLog(_log, clock=now)
        # For the metrics.
        counted = [each for each in Reason if each not in (Reason.RESTRICTED, Reason.CLOSED)]
        self.counts: Counter[Reason] = Counter(dict.fromkeys(counted, 0))

    def add(self, refusal: Refusal, peer: str, detail: str = "") -> None:
        """Count a refusal of a call from peer (host:port); detail: what only the log says."""
        self.counts[refusal.reason] += 1
        reason, text = refusal.reason.value, detail or refusal.message
        self._log.report(peer, reason, "refused a call: peer=%s reason=%s: %r", reason, text)
