"""Interface of batchers, and the choice of a batcher for a configuration.

In each turn of the event loop the model version enqueues the new entries, asks for a batch for each
free instance, lets the batcher form batches ahead, and asks when to call again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid.core.known_backends import ENSEMBLE_PLATFORM
from nereid_scheduler.batching.adaptive_batcher import AdaptiveBatcher
from nereid_scheduler.batching.dynamic_batcher import DynamicBatcher
from nereid_scheduler.batching.fifo_batcher import FifoBatcher
from nereid_scheduler.batching.policies.fair_shares import can_share
from nereid_scheduler.batching.policies.gathering import Gathering, can_gather
from nereid_scheduler.batching.policies.latency_target import LatencyTarget
from nereid_scheduler.batching.policies.queue_control import QueueControl
from nereid_scheduler.batching.policies.sizing import MeasuredSizing, Sizing
from nereid_scheduler.batching.sequences.direct import DirectBatcher
from nereid_scheduler.batching.sequences.iterative import (
    IterativeDirectBatcher,
    IterativeOldestBatcher,
)
from nereid_scheduler.batching.sequences.oldest import OldestBatcher
from nereid_scheduler.batching.times.batch_times import BatchTimes
from nereid_scheduler.batching.token_batcher import TokenBatcher
from nereid_scheduler.core.instances.router import Router
from nereid_scheduler.core.requests.entry import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence, Sized

    from nereid.core.errors import NereidError
    from nereid.model_config import DynamicBatching, ModelConfig
    from nereid_scheduler.batching.policies.queue_control import AdmissionTarget, Control
    from nereid_scheduler.batching.sequences.sequence_batcher import SequenceBatcher
    from nereid_scheduler.core.requests.entry import Entry

__all__ = [
    "Batch",
    "Batcher",
    "DynamicBatcher",
    "FifoBatcher",
    "LatencyTarget",
    "make_batcher",
    "target_of",
]


class Batcher(Protocol):
    """Queue of one model version. Only the object that owns the version's requests may call it.

    Never requeue an entry that was removed, has expired or has had its response.
    """

    @property
    def pending(self) -> int:
        """Number of entries, including those in formed batches."""

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raise Unavailable if the queue is full."""

    def requeue(self, entries: Sequence[Entry]) -> None:
        """Put entries back to the front, in this order; queue limits and timeouts do not apply."""

    def remove_entry(self, entry: Entry) -> bool:
        """Remove an entry that no instance has; return False if the batcher does not have it."""

    def next_batch(self, now_ns: int, instances: int) -> Batch | None:
        """Return a batch for an instance, or `None` if the instance has to wait.

        The entries of the batch are EXECUTING now. instances: number of ready instances.
        """

    def has_grown(self, now_ns: int, instances: int) -> bool:
        """Return whether the next batch is complete, so that it may wait at an instance."""

    def form_batches(self, now_ns: int, instances: int) -> None:
        """Form batches ahead of time, and add entries to the last one."""

    def expire_entries(self, now_ns: int) -> list[tuple[Entry, NereidError]]:
        """Remove entries whose queue timeout or deadline has passed; return them with errors."""

    def closes_ns(self, now_ns: int) -> int | None:
        """Return when the next batch's queue delay ends; `None` if no batch is delayed."""

    def wake_at_ns(self, now_ns: int) -> int | None:
        """Return the latest time at which the owner must expire entries and ask for batches."""

    def batch_ended(self, instance: Hashable, batch: Batch, taken_ns: int, now_ns: int) -> None:
        """Record that an instance has executed a batch and has no other one.

        taken_ns: time since the batch was sent. The batch is in the version's BatchTimes.
        """


# Key: (sequences are iterative, strategy is "oldest").
_STRATEGIES: Final[dict[tuple[bool, bool], Callable[..., SequenceBatcher]]] = {
    (False, False): DirectBatcher,
    (False, True): OldestBatcher,
    (True, False): IterativeDirectBatcher,
    (True, True): IterativeOldestBatcher,
}


def make_batcher(  # noqa: PLR0913 (most by keyword)
    config: ModelConfig,
    router: Router[Any] | None = None,
    times: BatchTimes | None = None,
    open_requests: Sized = (),
    *,
    max_pending: int = 0,
    admission: AdmissionTarget | None = None,
    client_share: float = 1.0,
) -> Batcher:
    """Return a batcher for a model of this configuration.

    Args:
        config: Configuration of the model.
        router: Has the version's instances, and knows which of them are free.
        times: Measured times of the version's batches.
        open_requests: Requests of the version that have no response yet.
        max_pending: Maximum number of queued entries; 0 means no limit.
        admission: Target of adaptive admission; `None` means that only max_pending, the queue
            policy and the model's latency target limit the queue. It is ignored for models with
            sequences, as a sequence must not lose a request.
        client_share: Maximum fraction of a model's sequence slots that one client may occupy.
    """
    router = router or Router()
    times = times or BatchTimes()
    if config.sequences is not None:
        kind = config.sequences.iterative, config.sequences.oldest is not None
        make = _STRATEGIES[kind]
        return make(config, config.sequences, router, times, max_pending, client_share)
    size = 1 if config.batching is None else config.max_batch_size
    target: LatencyTarget | None = None
    if holds_target(config):
        target = LatencyTarget(config.target_p99_us * 1000, size, times.rows)
    control: Control | None = target
    if control is None and admission is not None:
        control = QueueControl(admission, size)
    batcher: FifoBatcher | DynamicBatcher
    if config.batching is None:
        batcher = FifoBatcher(config.name, max_pending)
    elif config.batching.max_batch_tokens and config.padding is not None:
        batcher = TokenBatcher(
            config.name,
            config.batching,
            size,
            config.padding.sizes[0],
            target or _sizing_of(config, config.batching, router, times, open_requests),
            times,
            max_pending,
        )
    else:
        gathers = control is None and can_gather(config)
        batcher = DynamicBatcher(
            config.name,
            config.batching,
            target or _sizing_of(config, config.batching, router, times, open_requests),
            Gathering(times) if gathers else None,
            max_pending,
        )
    return batcher if control is None else AdaptiveBatcher(batcher, control, router)


def _sizing_of(
    config: ModelConfig,
    batching: DynamicBatching,
    router: Router[Any],
    times: BatchTimes,
    open_requests: Sized,
) -> Sizing:
    """Return the sizing of a model without a latency target."""
    if can_share(batching, config.max_batch_size):
        return MeasuredSizing(config.max_batch_size, router, times, open_requests)
    delay_ns = batching.max_queue_delay_us * 1000
    return Sizing(config.max_batch_size, delay_ns, batching.preferred_batch_sizes)


def target_of(batcher: Batcher) -> LatencyTarget | None:
    """Return the latency target of a batcher from make_batcher(), if any."""
    control = batcher.control if isinstance(batcher, AdaptiveBatcher) else None
    return control if isinstance(control, LatencyTarget) else None


def holds_target(config: ModelConfig) -> bool:
    """Return whether target_p99_us applies: not to sequences, decoupled models and ensembles."""
    return (
        config.target_p99_us > 0
        and config.sequences is None
        and not config.decoupled
        and config.platform != ENSEMBLE_PLATFORM
    )
