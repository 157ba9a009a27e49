"""Counts refusals by reason. Logs at most one refusal per address and reason in an interval."""

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
    """Counts of the refusals of one gateway."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._log = RefusalLog(_log, clock=now)
        # Every counted reason is in the metrics from the start.
        reasons = [reason for reason in Reason if reason not in (Reason.RESTRICTED, Reason.CLOSED)]
        self.counts: Counter[Reason] = Counter(dict.fromkeys(reasons, 0))

    def add(self, refusal: Refusal, peer: str, detail: str = "") -> None:
        """Count a refusal. detail: text for the log that clients do not see."""
        self.counts[refusal.reason] += 1
        reason, text = refusal.reason.value, detail or refusal.message
        self._log.report(peer, reason, "refused a call: peer=%s reason=%s: %r", reason, text)
