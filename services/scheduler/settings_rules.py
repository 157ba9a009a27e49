"""What the settings ask of the scheduler's parts, in these parts' own terms."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nereid.service_process import StartError
from nereid.services.scheduler.models.queue_limits import QueueLimits
from nereid.services.scheduler.rate_limiting.rate_limiter import RateLimiter
from nereid.services.scheduler.rate_limiting.resources import Resources
from nereid.services.scheduler.reconciler.rules import ModelControlRules
from nereid.services.scheduler.settings import BY_EXECUTIONS
from nereid.services.scheduler.state.cache_store import CacheStore
from nereid.services.scheduler.state.file_store import FileStore
from nereid.services.scheduler.state.files import StateFiles
from nereid.services.scheduler.state.state import SchedulerState

if TYPE_CHECKING:
    from nereid.rpc import Channel
    from nereid.services.scheduler.executors.remote_instance import RemoteInstance
    from nereid.services.scheduler.settings import Settings


def queue_limits(settings: Settings) -> QueueLimits:
    """Of every model version."""
    return QueueLimits(
        max_queue_size=settings.max_queue_size,
        max_retries=settings.max_retries,
        no_executor_timeout_s=settings.no_executor_limit_s,
        waiting_batches=settings.waiting_batches,
        admission_target_ms=settings.admission_target_ms if settings.admission == "codel" else 0,
        admission_interval_ms=settings.admission_interval_ms,
        client_sequence_share=settings.client_sequence_percent / 100,
    )


def open_state(settings: Settings, cache: Channel | None) -> SchedulerState:
    """cache: where the cache's calls go; None: there is none. Raises StartError."""
    name = settings.state_name
    if not name:
        directory = settings.state_directory
        store = FileStore(StateFiles(directory)) if directory else None
        return SchedulerState(store, start_s=settings.recovery.state_s)
    if cache is None:
        raise StartError("--state-name requires --cache-address, of a cache in Redis")
    # Others may write to Redis.
    secret = settings.mesh_secret(f"state of {name}")
    if not secret:
        raise StartError("--state-name requires the mesh's own token (--mesh-token-file)")
    limit_s = settings.recovery.state_s
    return SchedulerState(CacheStore(cache, name, limit_s), secret, start_s=limit_s)


def rate_limiter(settings: Settings) -> RateLimiter[RemoteInstance] | None:
    """None: instances execute as soon as they are free."""
    if settings.rate_limit != BY_EXECUTIONS:
        return None
    resources = Resources(settings.rate_limit_resource)
    return RateLimiter(resources, asyncio.get_running_loop().call_soon)


def control_rules(settings: Settings) -> ModelControlRules:
    """Of model control."""
    return ModelControlRules(
        settings.model_control_mode,
        settings.load_model,
        settings.repository_poll_secs,
        settings.model_load_retry_count,
        settings.no_executor_limit_s,
        allow_model_files=settings.allow_model_files,
        hand_over_limit_s=settings.exit_timeout_secs,
    )
