"""Clients in threads that check every response. They use NVIDIA's tritonclient.

Each waits for a response before it sends its next request; latencies are in seconds.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.grpc as triton

from benchmarks.failure import BenchError
from benchmarks.model_cache import models

_TIMEOUT_S = 60.0


class Client:
    """A client with one connection; `mebibytes`: size of each model."""

    def __init__(self, port: int, mebibytes: int, seed: int) -> None:
        self._mebibytes = mebibytes
        self._rows = models.rows_of(seed, mebibytes)
        # Channels of equal arguments are shared unless they are asked not to be.
        arguments = [("grpc.use_local_subchannel_pool", 1)]
        self._client = triton.InferenceServerClient(f"127.0.0.1:{port}", channel_args=arguments)
        self._input = triton.InferInput("ROWS", [4], "INT32")
        self._input.set_data_from_numpy(self._rows)

    def ask(self, number: int) -> float:
        """Send one request, and return its latency.

        Raises:
            BenchError: its response is an error, or wrong.
        """
        began = time.perf_counter()
        try:
            result = self._client.infer(
                models.name_of(number), [self._input], client_timeout=_TIMEOUT_S
            )
        except triton.InferenceServerException as error:
            raise BenchError(f"model {models.name_of(number)}: {error}") from error
        took = time.perf_counter() - began
        expected = models.values_of(number, self._rows, self._mebibytes)
        if not np.array_equal(result.as_numpy("VALUES"), expected):
            raise BenchError(f"model {models.name_of(number)} gave another model's response")
        return took

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def replay(clients: list[Client], requests: Iterable[int]) -> list[float]:
    """Send requests, each with the next free client, and return their latencies."""
    pending, lock = iter(requests), threading.Lock()

    def next_request() -> int | None:
        with lock:
            return next(pending, None)

    def work(client: Client) -> list[float]:
        latencies = []
        while (number := next_request()) is not None:
            latencies.append(client.ask(number))
        return latencies

    with ThreadPoolExecutor(len(clients)) as pool:
        return [latency for taken in pool.map(work, clients) for latency in taken]


def measure_beside(
    clients: list[Client],
    hot: list[int],
    other: Client,
    others: Iterator[int],
    seconds: float,
) -> tuple[list[float], list[float]]:
    """Return latencies of requests for hot models, and of another client at the same time."""
    end_s = time.perf_counter() + seconds

    def until_end(client: Client, next_model: Callable[[], int]) -> list[float]:
        latencies = []
        while time.perf_counter() < end_s:
            latencies.append(client.ask(next_model()))
        return latencies

    def in_turn(first: int) -> Callable[[], int]:
        turn = first

        def next_model() -> int:
            nonlocal turn
            turn += 1
            return hot[turn % len(hot)]

        return next_model

    with ThreadPoolExecutor(len(clients) + 1) as pool:
        beside = pool.submit(until_end, other, lambda: next(others))
        runs = [
            pool.submit(until_end, client, in_turn(index)) for index, client in enumerate(clients)
        ]
        return [latency for run in runs for latency in run.result()], beside.result()
