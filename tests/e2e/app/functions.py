"""An application: one model of each kind."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import nereid


@nereid.model(batch=True, max_batch_size=32, max_delay_us=200_000)
def double(x: nereid.Tensor["float32", -1]) -> nereid.Tensor["float32", -1]:
    return x * 2


@nereid.model(batch=True, max_delay_us=200_000)
def rows(x: nereid.Tensor["float32", 1]) -> nereid.Tensor["int64", 1]:
    """How many rows the call had."""
    return np.full((len(x), 1), len(x))


@nereid.model(batch=True)
async def adouble(x: nereid.Tensor["float32", -1]) -> nereid.Tensor["float32", -1]:
    await asyncio.sleep(0)
    return x * 2


@nereid.model
def plain(x: nereid.Tensor["float32", 2, -1]) -> nereid.Tensor["float32", -1]:
    return x.sum(axis=0)


class Statistics(NamedTuple):
    mean: nereid.Tensor["float64", 1]
    count: int


@nereid.model
def statistics(x: nereid.Tensor["float64", -1]) -> Statistics:
    return Statistics(x.mean(keepdims=True), len(x))


@dataclass
class Words:
    first: str
    all: nereid.Tensor["str", -1]
    raw: bytes


@nereid.model
def words(text: str, separator: str = " ") -> Words:
    parts = text.split(separator)
    return Words(parts[0], parts, text.encode())


@nereid.model(batch=True)
def upper(text: str) -> str:
    return np.array([each.upper() for each in text], object)


@nereid.model
def count(n: int) -> Iterator[int]:
    yield from range(n)
    if n > 3:
        raise ValueError("more than 3")


@nereid.model
async def acount(n: int) -> AsyncIterator[nereid.Tensor["int64", 1]]:
    for number in range(n):
        await asyncio.sleep(0)
        yield np.array([number])


waiting: list[asyncio.Event] = []


@nereid.model
async def meet(n: int) -> int:
    """Return once n calls run at the same time."""
    event = asyncio.Event()
    waiting.append(event)
    if len(waiting) == n:
        for each in waiting:
            each.set()
        waiting.clear()
    await event.wait()
    return n


@nereid.model(instances=2, name="scaler")
class Scaler:
    def __init__(self) -> None:
        self.factor = 3.0
        self.lock = threading.Lock()

    def __call__(self, x: nereid.Tensor["float32", -1]) -> nereid.Tensor["float32", -1]:
        with self.lock:
            return x * np.float32(self.factor)

    def close(self) -> None:
        print("the scaler is closed")


@nereid.model(batch=True)
def wrong(x: nereid.Tensor["float32", -1]) -> nereid.Tensor["float32", -1]:
    return x.astype("float64")


@nereid.model
def fails(x: float) -> float:
    raise ValueError(f"{x} is too much")


@nereid.model(
    batch=True,
    max_batch_size=2,
    # A batch of two, always.
    max_delay_us=30_000_000,
    config={
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "allow_ragged_batch": True}]
    },
)
def ragged(x: nereid.Tensor["float32", -1]) -> nereid.Tensor["float32", -1]:
    if x.shape[1] == 3:
        raise ValueError("three columns")
    return x


@nereid.model(
    inputs={"x": nereid.Tensor("float32", -1)},
    outputs={"low": nereid.Tensor("float32", 1), "high": nereid.Tensor("float32", 1)},
)
def bounds(x: Any) -> Any:
    return {"low": x.min(keepdims=True), "high": x.max(keepdims=True)}


MODELS = (
    *(double, adouble, rows, plain, statistics, words, upper),
    *(count, acount, meet, Scaler, wrong, fails, ragged, bounds),
)
