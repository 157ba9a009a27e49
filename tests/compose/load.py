"""Clients on both protocols that ask without a pause and check each response."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import tritonclient.grpc.aio
import tritonclient.http.aio

from tests.compose.keys import CLIENT, headers
from tests.compose.models import CACHED, LENGTH, PLAIN

_LIMIT_S = 90.0
_CLIENTS_EACH = 6
# So few that the cache soon has them all.
_CACHED_INPUTS = 16


class Load:
    """What came of the requests so far."""

    def __init__(self) -> None:
        self.responded = 0
        self.key = CLIENT
        self.failures: list[str] = []
        self._moved = asyncio.Condition()

    async def more(self, count: int) -> None:
        """Wait for so many more responses, or for a failure."""
        goal = self.responded + count
        async with asyncio.timeout(_LIMIT_S), self._moved:
            await self._moved.wait_for(lambda: self.responded >= goal or self.failures)
        assert self.failures == []

    async def ask_forever(self, module: Any, client: Any, seed: int) -> None:
        for turn in range(seed * 1_000_000, (seed + 1) * 1_000_000):
            cached = turn % 2 == 1
            value = turn % _CACHED_INPUTS if cached else turn
            try:
                await ask(module, client, CACHED if cached else PLAIN, value, key=self.key)
            except Exception as error:
                self.failures.append(f"{module.__name__}: {error!r}")
            self.responded += 1
            async with self._moved:
                self._moved.notify_all()


async def ask(
    module: Any, client: Any, model: str, value: int, factor: int = 2, key: str = CLIENT
) -> None:
    """One request; its response must be twice its input, or so many times."""
    data = np.full((1, LENGTH), value, np.float32)
    tensor = module.InferInput("INPUT0", list(data.shape), "FP32")
    tensor.set_data_from_numpy(data)
    result = await client.infer(model, [tensor], headers=headers(key))
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), factor * data)


@contextlib.asynccontextmanager
async def clients(http: str, grpc: str, each: int = 1) -> AsyncIterator[list[tuple[Any, Any]]]:
    """(module, client) pairs, so many for each protocol."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            (module, await stack.enter_async_context(module.InferenceServerClient(address)))
            for module, address in (
                (tritonclient.http.aio, http),
                (tritonclient.grpc.aio, grpc),
            )
            for _ in range(each)
        ]


@contextlib.asynccontextmanager
async def load(http: str, grpc: str) -> AsyncIterator[Load]:
    """Load that lasts as long as the block."""
    load = Load()
    async with clients(http, grpc, _CLIENTS_EACH) as pairs:
        workers = [
            asyncio.create_task(load.ask_forever(module, client, seed))
            for seed, (module, client) in enumerate(pairs)
        ]
        try:
            yield load
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
