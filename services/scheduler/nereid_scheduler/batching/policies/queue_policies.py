"""Triton's queue policies: priority levels, and limits on the time and the number in a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.model_config import DynamicBatching

if TYPE_CHECKING:
    from nereid.model_config import QueuePolicy


def forms_ahead(batching: DynamicBatching) -> bool:
    """Return whether batches may be formed before an instance is free."""
    policy = batching.default_queue_policy
    return not (
        batching.priority_levels
        or policy.default_timeout_us
        or policy.allow_timeout_override
        or policy.max_queue_size
    )


class QueuePolicies:
    """Policies of a model's priority levels. Without `levels`, all requests share one policy."""

    def __init__(self, batching: DynamicBatching | None) -> None:
        batching = batching or DynamicBatching()
        self.levels = batching.priority_levels
        self.default_level = batching.default_priority_level if self.levels else 1
        self._default = batching.default_queue_policy
        self._by_level = dict(batching.priority_queue_policies) if self.levels else {}
        self.forms_ahead = forms_ahead(batching)
        # True if all requests have the default level and no timeout.
        self.uniform = not self.levels and not self._default.default_timeout_us

    def of_level(self, level: int) -> QueuePolicy:
        """Return the policy of a level."""
        return self._by_level.get(level, self._default)

    def level(self, priority: int) -> int:
        """Return the level of a request; an unknown priority gets the default level."""
        return priority if 1 <= priority <= self.levels else self.default_level

    def timeout_us(self, level: int, wanted_us: int) -> int:
        """Return the timeout; 0 means none. As on Triton, a request can only shorten it."""
        policy = self.of_level(level)
        timeout_us = policy.default_timeout_us
        if policy.allow_timeout_override and 0 < wanted_us < timeout_us:
            return wanted_us
        return timeout_us
