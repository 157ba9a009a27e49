"""Measurements that no server made: `measured(level, latencies_us=...)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hdrh.histogram import HdrHistogram

from nereid_perf.measurement import (
    ClientCost,
    Latencies,
    LoadLevel,
    Measurement,
    PhaseTiming,
    ServerSplit,
)


def histogram(values_us: Iterable[float] = ()) -> HdrHistogram:
    found = HdrHistogram(1, 3600 * 10**9, 3)
    for each in values_us:
        found.record_value(int(each * 1000))
    return found


def concurrency(value: float) -> LoadLevel:
    return LoadLevel("concurrency", value)


def rate(value: float) -> LoadLevel:
    return LoadLevel("rate", value)


def measured(
    level: LoadLevel,
    latencies_us: Iterable[float] = (1000,),
    *,
    service_us: Iterable[float] | None = None,
    first_us: Iterable[float] | None = None,
    between_us: Iterable[float] = (),
    duration_s: float = 1.0,
    failures: Mapping[str, int] | None = None,
    server: tuple[ServerSplit, ...] = (),
    gauges: Mapping[str, tuple[float, float]] | None = None,
    models: Mapping[str, Measurement] | None = None,
    timings: Mapping[str, PhaseTiming] | None = None,
    client: ClientCost | None = None,
    is_stable: bool = True,
) -> Measurement:
    values = list(latencies_us)
    return Measurement(
        level=level,
        duration_s=duration_s,
        requests=len(values),
        responses=len(values),
        failures=failures or {},
        cancelled=0,
        is_stable=is_stable,
        windows=3,
        latencies=Latencies(
            histogram(values),
            histogram(values if service_us is None else service_us),
            histogram(values if first_us is None else first_us),
            histogram(between_us),
        ),
        client=client or ClientCost(cpu_us=20.0, busy=0.3, delayed=0, is_bottleneck=False),
        server=server,
        gauges=gauges or {},
        models=models or {},
        timings=timings or {},
    )


def split(model: str = "m", requests: int = 100, **figures: float) -> ServerSplit:
    """Return 10 us of queue and 1, 100 and 2 us of compute, unless figures say otherwise."""
    usual = {
        "queue_us": 10.0,
        "compute_input_us": 1.0,
        "compute_infer_us": 100.0,
        "compute_output_us": 2.0,
    }
    return ServerSplit(model, "1", requests, requests // 2, **{**usual, **figures})  # type: ignore[arg-type]
