"""Configurations of dynamic batching, as far as they say how batches form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nereid.model_config import DynamicBatching


# More requests than a batch can have.
UNLIMITED: Final = 1 << 62


def forms_ahead(batching: DynamicBatching) -> bool:
    """Return whether batches may be formed before there is an instance for them."""
    policy = batching.default_queue_policy
    return not (
        batching.priority_levels
        or policy.default_timeout_us
        or policy.allow_timeout_override
        or policy.max_queue_size
    )


def can_share(batching: DynamicBatching, max_batch_size: int) -> bool:
    """Return whether nothing in the configuration asks for larger batches or for certain sizes."""
    return not batching.max_queue_delay_us and batching.preferred_batch_sizes in (
        (),
        (max_batch_size,),
    )
