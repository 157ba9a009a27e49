"""Environment: the settings, clients and recorders that a scheduler's parts share."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid.process.service_process import StartError
from nereid.shm.segments import shm_namespace
from nereid.timeline.recorder import Recorder
from nereid_scheduler.batching.rate_limiting.rate_limiter import RateLimiter
from nereid_scheduler.control.state.cache_store import CacheStore
from nereid_scheduler.control.state.file_store import FileStore
from nereid_scheduler.control.state.files import StateFiles
from nereid_scheduler.control.state.state import SchedulerState
from nereid_scheduler.core.measurements.latencies import parse_metrics_config
from nereid_scheduler.core.measurements.timeline import NoTimeline, SchedulerTimeline
from nereid_scheduler.core.requests.segment_owners import SegmentOwners
from nereid_scheduler.core.resources import Resources
from nereid_scheduler.placement.loads.load_rules import LoadRules
from nereid_scheduler.placement.models.config_completion import CompletionRules
from nereid_scheduler.ports import SocketPorts
from nereid_scheduler.settings import BY_EXECUTIONS
from nereid_scheduler.versions.caching.mesh_cache import MeshCache
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.steps import Steps
from nereid_scheduler.versions.tracing.spans import open_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid.rpc import Channel
    from nereid_scheduler.control.shards.members.membership import Membership
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.measurements.latencies import MetricsConfig
    from nereid_scheduler.ports import MeshPorts
    from nereid_scheduler.settings import Settings
    from nereid_scheduler.versions.caching.cache_client import CacheLink
    from nereid_scheduler.versions.tracing.traces import Traces


@dataclass(frozen=True)
class Environment:
    """Settings, clients and recorders that the scheduler's other parts share."""

    settings: Settings
    ports: MeshPorts
    cache: MeshCache
    state: SchedulerState
    segment_owners: SegmentOwners
    traces: Traces
    metrics_config: MetricsConfig
    timeline: SchedulerTimeline
    # The steps of all versions.
    steps: Steps

    def load_rules(
        self, membership: Membership | None, free_memory: Callable[[str], Mapping[str, int]]
    ) -> LoadRules:
        """Return the rules for loads. `free_memory`: returns an executor's free bytes by device."""
        settings = self.settings
        return LoadRules(
            CompletionRules(settings.disable_auto_complete_config, settings.backend_settings),
            settings.backend_settings,
            _queue_limits(settings),
            self.metrics_config,
            self.traces,
            self.cache.responses,
            self.segment_owners,
            settings.backends,
            self.cache.snapshots,
            _rate_limiter(settings),
            membership,
            free_memory,
            self.timeline,
            self.steps,
        )


def open_environment(
    settings: Settings,
    open_cache_link: Callable[[], CacheLink] | None,
    state: SchedulerState | None,
    ports: MeshPorts | None,
    *,
    cache_in_memory: bool,
) -> Environment:
    """Open the parts that the settings describe, unless they are given. Raises StartError."""
    ports = SocketPorts(settings) if ports is None else ports
    channel = ports.open_cache()
    return Environment(
        settings,
        ports,
        MeshCache(
            settings.mesh_secret("response cache"),
            settings.cache_timeout_ms,
            channel,
            open_cache_link,
            in_this_process=cache_in_memory,
        ),
        state or _open_state(settings, channel),
        SegmentOwners(shm_namespace(settings.shm_limit_bytes)),
        open_traces(settings),
        parse_metrics_config(settings.metrics_config),
        _open_timeline(settings),
        Steps(),
    )


def _queue_limits(settings: Settings) -> QueueLimits:
    return QueueLimits(
        max_queue_size=settings.max_queue_size,
        max_retries=settings.max_retries,
        no_executor_timeout_s=settings.no_executor_limit_s,
        waiting_batches=settings.waiting_batches,
        admission_target_ms=settings.admission_target_ms if settings.admission == "codel" else 0,
        admission_interval_ms=settings.admission_interval_ms,
        client_sequence_share=settings.client_sequence_percent / 100,
    )


def _open_state(settings: Settings, cache: Channel | None) -> SchedulerState:
    """Open the store that keeps the scheduler's state. Raises StartError."""
    name = settings.state_name
    if not name:
        directory = settings.state_directory
        store = FileStore(StateFiles(directory)) if directory else None
        return SchedulerState(store, start_s=settings.recovery.state_s)
    if cache is None:
        raise StartError("--state-name requires --cache-address, of a cache in Redis")
    # The secret authenticates records, since others may write to Redis.
    secret = settings.mesh_secret(f"state of {name}")
    if not secret:
        raise StartError("--state-name requires the mesh's own token (--mesh-token-file)")
    limit_s = settings.recovery.state_s
    return SchedulerState(CacheStore(cache, name, limit_s), secret, start_s=limit_s)


def _open_timeline(settings: Settings) -> SchedulerTimeline:
    if not settings.timeline_seconds:
        return NoTimeline()
    name = socket.gethostname() if settings.scheduler_peers is None else settings.shard_name()
    return SchedulerTimeline(Recorder("scheduler", name, settings.timeline_seconds))


def _rate_limiter(settings: Settings) -> RateLimiter[RemoteInstance] | None:
    """Return the rate limiter; `None` means that instances execute as soon as they are free."""
    if settings.rate_limit != BY_EXECUTIONS:
        return None
    resources = Resources(settings.rate_limit_resource)
    return RateLimiter(resources, asyncio.get_running_loop().call_soon)
