"""Counts how much models are requested, with decay, whether they are in memory or not.

It is pure and has no clock: a count halves with every so many requests for all models. Therefore a
quiet hour forgets nothing, and a changed load counts as soon as it occurs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# After so many half-lives a request counts for a thousandth; what counts less is forgotten.
_MAX_HALF_LIVES: Final = 10.0


class Popularity:
    """Decayed counts of requests by model.

    Of models that are not in memory it remembers no more than the requests of some 20 half-lives
    can name.
    """

    def __init__(self, half_life: float) -> None:
        """Set a count's half-life, in requests for each model in memory; 0 keeps counts at 0."""
        self._half_life = half_life
        # Requests of each model in memory since it was loaded, as they were last read.
        self._seen: dict[str, int] = {}
        # Each request adds 2 to the power of the half-lives that had passed. This replaces a decay
        # of all counts at each request.
        self._weights: dict[str, float] = {}
        self._half_lives = 0.0

    def update(self, requests: Mapping[str, int]) -> None:
        """Add the requests that each model in memory has had since it was loaded."""
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
        # This is as if each model's requests had come at even distances. One request then counts
        # as 1, and a number of requests for one model counts as no more than what the same rate of
        # requests adds up to in the long run.
        share = (1 - math.exp2(-passed)) / (passed * math.log(2))
        unit = math.exp2(self._half_lives) * share
        for name, count in added.items():
            if count:
                self._weights[name] = self._weights.get(name, 0.0) + unit * count

    def count(self, model: str) -> float:
        """Return the decayed number of a model's requests; 0.0 if none counts any more."""
        return self._weights.get(model, 0.0) * math.exp2(-self._half_lives)

    def __len__(self) -> int:
        """Return how many models it remembers."""
        return len(self._weights)

    def _rebase(self, passed: float) -> None:
        """Let one request count as 1 again after these half-lives, so that no number overflows."""
        decay = math.exp2(-self._half_lives - passed)
        least = math.exp2(-_MAX_HALF_LIVES)
        decayed = ((name, weight * decay) for name, weight in self._weights.items())
        self._weights = {name: weight for name, weight in decayed if weight >= least}
        self._half_lives = 0.0
