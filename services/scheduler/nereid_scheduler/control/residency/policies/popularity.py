"""How much models are asked for: counts of their requests that decay, whether in memory or not.

Pure. The clock is the requests themselves: a count halves with every so many requests for all
models, so that a quiet hour forgets nothing, and a changed load counts as soon as it is one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# After so many half-lives a request counts for a thousandth, and what counts less is forgotten.
_MOST_HALF_LIVES: Final = 10.0


class Popularity:
    """By model. Of those that are not in memory it remembers no more than the requests of some 20
    half-lives can name.
    """

    def __init__(self, half_life: float) -> None:
        """half_life: of a count, in requests for each model in memory; 0: every count is 0."""
        self._half_life = half_life
        # Of a model in memory: its requests since it was loaded, as they were read last.
        self._seen: dict[str, int] = {}
        # Each request adds 2 to the power of the half-lives that had passed, in place of a decay
        # of all counts at each request.
        self._weights: dict[str, float] = {}
        self._half_lives = 0.0

    def update(self, requests: Mapping[str, int]) -> None:
        """The requests that each model in memory has had since it was loaded."""
        news = {
            name: count - seen if count >= (seen := self._seen.get(name, 0)) else count
            for name, count in requests.items()
        }
        self._seen = dict(requests)
        total = sum(news.values())
        if not total or not self._half_life:
            return
        passed = total / (self._half_life * len(requests))
        if self._half_lives + passed > _MOST_HALF_LIVES:
            self._rebase(passed)
        else:
            self._half_lives += passed
        # As if the requests for each model had come at even distances. One counts as 1 then, and
        # any number of requests for one model no more than as many as keep coming add up to.
        share = (1 - math.exp2(-passed)) / (passed * math.log(2))
        unit = math.exp2(self._half_lives) * share
        for name, count in news.items():
            if count:
                self._weights[name] = self._weights.get(name, 0.0) + unit * count

    def count(self, model: str) -> float:
        """Its requests, decayed; 0.0: none that counts."""
        return self._weights.get(model, 0.0) * math.exp2(-self._half_lives)

    def __len__(self) -> int:
        """How many models it remembers."""
        return len(self._weights)

    def _rebase(self, passed: float) -> None:
        """Have one request count as 1 again after these half-lives, so that no number overflows."""
        decay = math.exp2(-self._half_lives - passed)
        least = math.exp2(-_MOST_HALF_LIVES)
        decayed = ((name, weight * decay) for name, weight in self._weights.items())
        self._weights = {name: weight for name, weight in decayed if weight >= least}
        self._half_lives = 0.0
