"""Objects that a model version uses besides its configuration; most are shared by all versions."""

# layout: not compiled, off the hot path

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nereid_scheduler.core.measurements.timeline import NO_TIMELINE
from nereid_scheduler.core.requests.segment_owners import SegmentOwners
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.steps import Steps
from nereid_scheduler.versions.tracing.traces import NO_TRACES

if TYPE_CHECKING:
    from nereid_scheduler.batching.rate_limiting.rate_limiter import RateLimiter
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.measurements.latencies import Latencies
    from nereid_scheduler.core.measurements.timeline import SchedulerTimeline
    from nereid_scheduler.versions.caching.cache_client import CacheClient
    from nereid_scheduler.versions.tracing.traces import Traces


@dataclass(frozen=True, slots=True)
class VersionContext:
    """Limits, clients and recorders that a version uses; a part that is `None` is not in use."""

    limits: QueueLimits = field(default_factory=QueueLimits)
    traces: Traces = NO_TRACES
    # Used if the model's configuration enables the response cache.
    cache: CacheClient | None = None
    segment_owners: SegmentOwners = field(default_factory=SegmentOwners)
    # Set if the metrics include latency quantiles or histograms.
    latencies: Latencies | None = None
    # `None` means that this process keeps snapshots of sequences.
    snapshots: CacheClient | None = None
    # `None` means that an instance executes as soon as it is free.
    rate_limiter: RateLimiter[RemoteInstance] | None = None
    timeline: SchedulerTimeline = NO_TIMELINE
    steps: Steps = field(default_factory=Steps)
