"""Counts how often models are requested, with decay, whether they are in memory or not.

A count halves after a fixed number of requests for all models, so a quiet hour forgets nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# Half-lives after which a request counts for a thousandth. A smaller count is forgotten.
_MAX_HALF_LIVES: Final = 10.0


class Popularity:
    """Decayed counts of requests, by model.

    After about 20 half-lives without a request, a model that is not in memory is forgotten.
    """

    def __init__(self, half_life: float) -> None:
        """half_life: half-life of a count, in requests per model in memory; 0 keeps counts at 0."""
        self._half_life = half_life
        self._seen: dict[str, int] = {}
        # Each request adds 2 to the power of the half-lives so far. So no request has to decay all
        # weights.
        self._weights: dict[str, float] = {}
        self._half_lives = 0.0

    def update(self, requests: Mapping[str, int]) -> None:
        """Add the requests that each model in memory has received since it was loaded."""
        added = {
            name: count - seen if count >= (seen := self._seen.get(name, 0)) else count
            for name, count in requests.items()
        }
        self._seen = dict(requests)
        total = sum(added.values())
        if not total or not self._half_life:
            return
        passed = total / (self._half_life * len(requests))
        if self._half_lives + passed > _MAX_HALF_LIVES:
            self._rebase(passed)
        else:
            self._half_lives += passed
        # Count as if each model's requests had come at even intervals. However many requests for
        # one model come at once, they count at most as much as a steady flow.
        share = (1 - math.exp2(-passed)) / (passed * math.log(2))
        unit = math.exp2(self._half_lives) * share
        for name, count in added.items():
            if count:
                self._weights[name] = self._weights.get(name, 0.0) + unit * count

    def count(self, model: str) -> float:
        """Return the decayed number of a model's requests; 0.0 if no request counts any more."""
        return self._weights.get(model, 0.0) * math.exp2(-self._half_lives)

    def __len__(self) -> int:
        return len(self._weights)

    def _rebase(self, passed: float) -> None:
        """Reduce all weights so that one request counts as 1 again and no number overflows."""
        decay = math.exp2(-self._half_lives - passed)
        least = math.exp2(-_MAX_HALF_LIVES)
        decayed = ((name, weight * decay) for name, weight in self._weights.items())
        self._weights = {name: weight for name, weight in decayed if weight >= least}
        self._half_lives = 0.0
