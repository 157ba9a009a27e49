"""Makes requests for models, and computes the hits of an optimal cache and of plain LRU.

A hit is a request whose model is in memory when the request comes. The module holds no state and
does no I/O.
"""

import random
from collections import OrderedDict
from collections.abc import Sequence


def zipf(models: int, requests: int, exponent: float, seed: int) -> list[int]:
    """Return the number of the model of each request; model 0 is the most popular."""
    weights = [1 / rank**exponent for rank in range(1, models + 1)]
    return random.Random(seed).choices(range(models), weights, k=requests)


def optimal_hits(requests: Sequence[int], slots: int) -> int:
    """Return the hits of Belady's MIN, which evicts the model whose next request comes last."""
    never = len(requests)
    following = [never] * len(requests)
    last: dict[int, int] = {}
    for at in range(len(requests) - 1, -1, -1):
        following[at] = last.get(requests[at], never)
        last[requests[at]] = at
    loaded: dict[int, int] = {}
    hits = 0
    for at, model in enumerate(requests):
        if model in loaded:
            hits += 1
        elif len(loaded) == slots:
            del loaded[max(loaded, key=loaded.__getitem__)]
        loaded[model] = following[at]
    return hits


def lru_hits(requests: Sequence[int], slots: int) -> int:
    """Return the hits of LRU, which evicts the least recently used model. Loads take no time."""
    loaded: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for model in requests:
        if model in loaded:
            hits += 1
            loaded.move_to_end(model)
        else:
            if len(loaded) == slots:
                loaded.popitem(last=False)
            loaded[model] = None
    return hits
