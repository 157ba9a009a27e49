"""What a version is given beside its configuration; most of it is shared by all versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nereid_scheduler.core.requests.segment_owners import SegmentOwners
from nereid_scheduler.versions.queue_limits import QueueLimits

if TYPE_CHECKING:
    from nereid_scheduler.batching.rate_limiting.rate_limiter import RateLimiter
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.measurements.latencies import Latencies
    from nereid_scheduler.core.measurements.timeline import SchedulerTimeline
    from nereid_scheduler.core.requests.entry_trace import Traces
    from nereid_scheduler.versions.caching.cache_client import CacheClient


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
