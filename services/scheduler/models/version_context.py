"""What a version is given beside its configuration; most of it is shared by all versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nereid.services.scheduler.models.queue_limits import QueueLimits
from nereid.services.scheduler.requests.segment_owners import SegmentOwners

if TYPE_CHECKING:
    from nereid.services.scheduler.caching.cache_client import CacheClient
    from nereid.services.scheduler.executors.remote_instance import RemoteInstance
    from nereid.services.scheduler.observability.entry_trace import Traces
    from nereid.services.scheduler.observability.latencies import Latencies
    from nereid.services.scheduler.observability.timeline import SchedulerTimeline
    from nereid.services.scheduler.rate_limiting.rate_limiter import RateLimiter


@dataclass(frozen=True, slots=True)
class VersionContext:
    """See the module."""

    limits: QueueLimits = field(default_factory=QueueLimits)
    # None: no request is traced.
    traces: Traces | None = None
    # Used where the configuration enables the response cache; None: there is no cache.
    cache: CacheClient | None = None
    segment_owners: SegmentOwners = field(default_factory=SegmentOwners)
    # Where quantiles or histograms are wanted.
    latencies: Latencies | None = None
    # Where snapshots of sequences are kept; None: here.
    snapshots: CacheClient | None = None
    # None: an instance executes as soon as it is free.
    rate_limiter: RateLimiter[RemoteInstance] | None = None
    # None: no timeline is recorded.
    timeline: SchedulerTimeline | None = None
