"""Results that no server gave, as `nereid perf` writes them: a sweep, a comparison, a search."""

from __future__ import annotations

from typing import Any

import numpy as np

from nereid_perf.measurement import ClientCost, LoadLevel, Measurement
from nereid_perf.output.result import FoundRate, Machine, MeasuredServer, Result
from nereid_perf.questions.comparison import compare_results
from tests.support.measurements import measured, split

_MACHINE = Machine("bench-1", "Linux 6.1", "A processor of some make", 16, 64 << 30, "3.11.7")


def served(level: LoadLevel, seed: int = 1, slower: float = 1.0) -> Measurement:
    """Return half a second of a server with eight slots of 2 ms each, and a tail."""
    rng = np.random.default_rng(seed)
    in_flight = level.value if level.kind == "concurrency" else level.value * 0.002
    rate = min(in_flight, 8) / 0.002 / slower
    service = 1600 + rng.exponential(400, int(rate / 2)) * slower
    wait = 2000 * slower * max(0, in_flight / 8 - 1) * rng.uniform(0.7, 1.3, int(rate / 2))
    queue = 50 + float(wait.mean())
    return measured(
        level,
        service + wait,
        first_us=(service + wait) / 4,
        between_us=service / 10,
        duration_s=0.5,
        failures={"UNAVAILABLE: exceeded the queue's size": 40} if in_flight > 20 else None,
        server=(
            split("mlp", int(rate), queue_us=queue, compute_infer_us=1500.0, total_us=queue + 1600),
        ),
        client=ClientCost(18.4, min(1.0, in_flight / 30), 12 * (in_flight > 20), in_flight > 30),
        is_stable=in_flight < 20,
    )


def server(*measurements: Measurement, **fields: Any) -> MeasuredServer:
    usual = {
        "url": "localhost:8001",
        "protocol": "grpc",
        "name": "nereid",
        "version": "0.2.0",
        "models": ("mlp",),
        "measurements": measurements,
    }
    return MeasuredServer(**{**usual, **fields})


def result(*servers: MeasuredServer, **fields: Any) -> Result:
    command = ("nereid", "perf", "-m", "mlp", "-i", "grpc", "--concurrency-range", "1:32:*2")
    return Result(command, "2026-03-01T12:00:00+00:00", "0.2.0", _MACHINE, servers, **fields)


def sweep(**fields: Any) -> Result:
    levels = [LoadLevel("concurrency", 2.0**n) for n in range(6)]
    return result(server(*map(served, levels)), **fields)


def rate_search() -> Result:
    rates = (1000, 2000, 4000, 3000, 3500, 3700, 3700)
    found = FoundRate("p99=20ms", "found", 3700, 3760, 3655.2, 2)
    measurements = [served(LoadLevel("rate", rate), seed) for seed, rate in enumerate(rates)]
    return result(server(*measurements), max_rate=found, slo="p99=20ms")


def comparison() -> Result:
    level = LoadLevel("concurrency", 4)
    a = [served(level, seed) for seed in range(12)]
    b = [served(level, seed + 100, 1.1) for seed in range(12)]
    return result(server(*a), server(*b, url="localhost:9001"), comparisons=compare_results(a, b))
