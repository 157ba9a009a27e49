"""Rules of a dynamic_batching configuration about how batches may be formed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nereid.model_config import DynamicBatching


UNLIMITED: Final = 1 << 62


def forms_ahead(batching: DynamicBatching) -> bool:
    """Return whether batches may be formed before an instance is free."""
    policy = batching.default_queue_policy
    return not (
        batching.priority_levels
        or policy.default_timeout_us
        or policy.allow_timeout_override
        or policy.max_queue_size
    )


def can_share(batching: DynamicBatching, max_batch_size: int) -> bool:
    """Return whether a batch may leave without waiting requests that would fit."""
    return not batching.max_queue_delay_us and batching.preferred_batch_sizes in (
        (),
        (max_batch_size,),
    )
