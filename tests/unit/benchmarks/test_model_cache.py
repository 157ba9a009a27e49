"""Hit rates of the optimum and of LRU, compared with an exhaustive search.

Kept as a test of an oracle: the residency policy is judged by the optimum.
"""

from __future__ import annotations

from itertools import combinations

import pytest

from benchmarks.model_cache import trace


def exhaustive_hits(requests: list[int], slots: int) -> int:
    """The best of all choices of what makes way."""
    reached = {frozenset[int](): 0}
    for model in requests:
        now: dict[frozenset[int], int] = {}
        for loaded, hits in reached.items():
            after = hits + (model in loaded)
            kept = loaded if model in loaded else loaded | {model}
            for each in combinations(sorted(kept), min(len(kept), slots)):
                if model in each:
                    now[frozenset(each)] = max(now.get(frozenset(each), 0), after)
        reached = now
    return max(reached.values())


@pytest.mark.parametrize("seed", range(5))
def test_no_choice_of_what_makes_way_has_more_hits_than_the_optimum(seed: int) -> None:
    requests = trace.zipf(6, 40, 0.7, seed)
    best = trace.optimal_hits(requests, 3)
    assert best == exhaustive_hits(requests, 3)
    assert 0 < trace.lru_hits(requests, 3) <= best


def test_the_least_recently_used_makes_way() -> None:
    assert trace.lru_hits([1, 2, 1, 3, 2, 1], 2) == 1
    assert trace.optimal_hits([1, 2, 1, 3, 2, 1], 2) == 2
