"""What the parts of a scheduler share, and are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid.services.scheduler.caching.mesh_cache import MeshCache
from nereid.services.scheduler.models.config_completion import CompletionRules
from nereid.services.scheduler.models.load_rules import LoadRules
from nereid.services.scheduler.observability.latencies import parse_metrics_config
from nereid.services.scheduler.observability.request_traces import open_traces
from nereid.services.scheduler.ports import SocketPorts
from nereid.services.scheduler.requests.segment_owners import SegmentOwners
from nereid.services.scheduler.settings_rules import open_state, queue_limits, rate_limiter
from nereid.shm.segments import shm_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid.rpc import Channel
    from nereid.services.scheduler.caching.cache_client import CacheLink
    from nereid.services.scheduler.observability.entry_trace import Traces
    from nereid.services.scheduler.observability.latencies import MetricsConfig
    from nereid.services.scheduler.ports import MeshPorts
    from nereid.services.scheduler.settings import Settings
    from nereid.services.scheduler.shards.membership import Membership
    from nereid.services.scheduler.state.state import SchedulerState


@dataclass(frozen=True)
class Environment:
    """traces: None: no request is traced into a file."""

    settings: Settings
    ports: MeshPorts
    cache: MeshCache
    state: SchedulerState
    segment_owners: SegmentOwners
    traces: Traces | None
    metrics_config: MetricsConfig

    def load_rules(
        self, membership: Membership | None, free_memory: Callable[[str], Mapping[str, int]]
    ) -> LoadRules:
        """free_memory: of an executor, by device."""
        settings = self.settings
        return LoadRules(
            CompletionRules(settings.disable_auto_complete_config, settings.backend_settings),
            settings.backend_settings,
            queue_limits(settings),
            self.metrics_config,
            self.traces,
            self.cache.responses,
            self.segment_owners,
            settings.backends,
            self.cache.snapshots,
            rate_limiter(settings),
            membership,
            free_memory,
        )


def open_environment(  # noqa: PLR0913 - as SchedulerService()
    settings: Settings,
    open_cache_link: Callable[[], CacheLink] | None,
    cache_channel: Channel | None,
    state: SchedulerState | None,
    ports: MeshPorts | None,
    *,
    cache_in_memory: bool,
) -> Environment:
    """As SchedulerService's constructor. Raises StartError."""
    ports = SocketPorts(settings) if ports is None else ports
    channel = None if open_cache_link else ports.open_cache()
    return Environment(
        settings,
        ports,
        MeshCache(settings, channel, open_cache_link, in_this_process=cache_in_memory),
        state or open_state(settings, cache_channel or channel),
        SegmentOwners(shm_namespace(settings.shm_limit_bytes)),
        open_traces(settings),
        parse_metrics_config(settings.metrics_config),
    )
