"""Records in the timeline why requests of one version waited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.timeline.records import DELAY, LOADING, RATE_LIMITER
from nereid_scheduler.batching.rate_limiting.rate_limited_batcher import RateLimitedRouter

if TYPE_CHECKING:
    from nereid_scheduler.batching.batcher import Batcher
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.instances.router import Router
    from nereid_scheduler.versions.records import Records


class WaitRecord:
    """The present wait of one version's requests.

    Waits for busy instances or for slots of sequences are not recorded.
    """

    def __init__(self, records: Records, batcher: Batcher, router: Router[RemoteInstance]) -> None:
        self._records = records
        self._batcher = batcher
        self._router = router
        # Reason of the wait; empty if none is recorded.
        self.reason = ""
        self._from_ns = 0

    def update(self, requests: int, now_ns: int) -> None:
        """If the reason has changed, record the wait until now. requests: how many waited."""
        reason = self._find_reason(now_ns) if self._batcher.pending else ""
        if reason == self.reason:
            return
        if self.reason:
            self._records.end_wait(self.reason, self._from_ns, now_ns, requests)
        self.reason, self._from_ns = reason, now_ns

    def _find_reason(self, now_ns: int) -> str:
        router = self._router
        if not router.count:
            return LOADING
        if isinstance(router, RateLimitedRouter) and router.requested:
            return RATE_LIMITER
        if not router.free or self._batcher.closes_ns(now_ns) is None:
            return ""
        return DELAY
