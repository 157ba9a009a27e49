"""A server with everything that is needed to measure it: inputs, shared memory, workers."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.regions import shared_regions
from nereid_perf.inputs.resolution import resolve_plan
from nereid_perf.inputs.source import expects_outputs, make_regions, make_source
from nereid_perf.output.result import MeasuredServer
from nereid_perf.plan import Plan, Workload
from nereid_perf.server import Server
from nereid_perf.server_stats.server_timing import REQUEST_HEADER
from nereid_perf.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nereid_perf.inputs.plan import InputPlan
    from nereid_perf.measurement import LoadLevel, Measurement
    from nereid_perf.run_settings import RunSettings
    from nereid_perf.session import Progress

# Seconds in which connections and the server warm up at the beginning of each level.
_WARM_UP_S = 1.0


@dataclass(frozen=True)
class MeasuredSide:
    """A server and its open session."""

    settings: RunSettings
    session: Session
    inputs: InputPlan
    name: str
    version: str

    def measure_for_a_time(self, level: LoadLevel) -> Measurement:
        """Measure one window of a fixed length, for callers that measure often."""
        seconds = self.settings.measurement.windows.interval_s
        return self.session.measure_for(level, seconds, min(_WARM_UP_S, seconds))

    def result(self, measurements: Iterable[Measurement]) -> MeasuredServer:
        """Return the server's part of the result, with these measurements."""
        models = self.inputs.models
        sizes = {model.batch_size for model in models}
        target = self.settings.target
        return MeasuredServer(
            url=target.url or target.server.address,
            protocol=target.protocol,
            name=self.name,
            version=self.version,
            models=tuple(f"{m.name}:{m.version}" if m.version else m.name for m in models),
            measurements=tuple(measurements),
            # If a mix has batches of different sizes, count requests and not inferences.
            batch_size=sizes.pop() if len(sizes) == 1 else 1,
            is_decoupled=_is_decoupled(self.inputs) or self.inputs.streams,
        )


@contextmanager
def open_side(
    settings: RunSettings, on_progress: Callable[[Progress], None]
) -> Iterator[MeasuredSide]:
    """Open a side until the context ends. May raise InputError, ServerError or OSError."""
    target, measurement = settings.target, settings.measurement
    server = Server(target.server)
    # Servers of OpenAI's API alone say neither their name nor statistics.
    name, version = ("", "") if target.path else server.name_and_version()
    if settings.perf_analyzer.trace_settings:
        server.update_trace_settings(settings.perf_analyzer.trace_settings)
    inputs = resolved_inputs(settings, server)
    session = Session(
        plan_of(settings, inputs),
        measurement.windows,
        server=None if target.path else server,
        bls_models=target.bls_models,
        metrics_url=target.metrics_page,
        metrics_interval_s=target.metrics_interval / 1000,
        records=Path(measurement.records) if measurement.records else None,
        on_progress=on_progress,
    )
    with shared_regions(make_regions(inputs), server), session:
        yield MeasuredSide(settings, session, inputs, name, version)


def resolved_inputs(settings: RunSettings, server: Server) -> InputPlan:
    """Return the inputs completed with the server's metadata. May raise InputError or ServerError.

    The function also makes the first worker's requests, to find errors before any worker starts.
    """
    target = settings.target
    inputs = settings.inputs.input_plan(target.server.protocol)
    inputs = replace(inputs, path=target.path, streams=bool(target.path) and target.streaming)
    inputs = resolve_plan(inputs, server)
    if _is_decoupled(inputs) and not target.streaming:
        raise InputError("a decoupled model needs -i grpc --streaming")
    make_source(inputs, 0, settings.load.workers)
    return inputs


def plan_of(settings: RunSettings, inputs: InputPlan) -> Plan:
    """Return the workers' plan for resolved inputs."""
    target, load = settings.target, settings.load
    is_decoupled = _is_decoupled(inputs)
    endpoint = target.server
    if target.server_timing:
        endpoint = replace(endpoint, headers=(*endpoint.headers, REQUEST_HEADER))
    return Plan(
        endpoint=endpoint,
        workloads=tuple(Workload(model.name, model.version) for model in inputs.models),
        make_source=partial(make_source, inputs),
        workers=load.workers,
        shape=load.shape,
        path=inputs.path,
        streaming=target.streaming,
        decoupled=is_decoupled,
        checks_responses=not is_decoupled and expects_outputs(inputs),
        compression=target.compression,
        server_timing=target.server_timing,
        cancel_percent=load.cancel_percent,
        max_in_flight=load.max_in_flight,
        streams_per_connection=target.streams_per_connection,
        seed=settings.inputs.random_seed,
    )


def _is_decoupled(inputs: InputPlan) -> bool:
    return any(
        model.signature is not None and model.signature.is_decoupled for model in inputs.models
    )
