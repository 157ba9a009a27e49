"""`nereid perf run`: measures each level, and prints what it showed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.config.settings_reader import read_shared_settings
from nereid.perf.exit_codes import ExitCode
from nereid.perf.plain_requests import SameSource, UnknownShapeError, plain_requests
from nereid.perf.plain_settings import PlainSettings
from nereid.perf.plan import Plan, Workload
from nereid.perf.server import Server, ServerError
from nereid.perf.session import Progress, Session, SessionError
from nereid.perf.settings import LoadSettings, MeasurementSettings, TargetSettings
from nereid.perf.summary import level_text, summary_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.perf.measurement import Measurement

_PROGRAM: Final = "nereid perf"
_ORDER: Final = tuple(ExitCode)


@dataclass(frozen=True)
class RunSettings:
    """All flags."""

    target: TargetSettings
    load: LoadSettings
    measurement: MeasurementSettings
    plain: PlainSettings


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    classes = (TargetSettings, LoadSettings, MeasurementSettings, PlainSettings)
    # Nothing of the environment: a server's variables would be taken for ours.
    settings = RunSettings(*read_shared_settings(classes, argv, {}, _PROGRAM))
    measurement = settings.measurement
    measurements: list[Measurement] = []
    try:
        server = Server(settings.target.endpoint)
        with Session(
            plan_of(settings, server),
            measurement.windows,
            server=server,
            bls_models=settings.target.bls_models,
            metrics_url=settings.target.metrics_page,
            metrics_interval_s=settings.target.metrics_interval / 1000,
            records=Path(measurement.records) if measurement.records else None,
            on_progress=_print_progress if measurement.verbose else None,
        ) as session:
            only = settings.load.level
            for level in settings.plain.levels if only is None else (only,):
                _print([level_text(level)])
                measurements.append(session.measure(level))
                _print([*summary_lines(measurements[-1]), ""])
    except (OSError, ServerError, SessionError, UnknownShapeError) as error:
        sys.stderr.write(f"{_PROGRAM}: {error}\n")
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.FAILED
    return exit_code(measurements)


def plan_of(settings: RunSettings, server: Server) -> Plan:
    """Asks the server for what its model is.

    Raises:
        ServerError: it does not say.
        UnknownShapeError: an input's shape has to be given.
    """
    target, load, plain = settings.target, settings.load, settings.plain
    endpoint = target.endpoint
    metadata = server.metadata(plain.model, plain.model_version)
    config = server.config(plain.model, plain.model_version)
    requests = plain_requests(
        metadata,
        endpoint.protocol,
        version=plain.model_version,
        batch_size=plain.batch_size,
        batches=_batches(metadata, config),
        shapes=dict(plain.shape),
        string_length=plain.string_length,
        zero=plain.input_data == "zero",
        seed=plain.random_seed,
    )
    policy = (config or {}).get("model_transaction_policy") or {}
    return Plan(
        endpoint=endpoint,
        workloads=(Workload(plain.model, plain.model_version),),
        make_source=SameSource(requests),
        workers=load.workers,
        shape=load.shape,
        streaming=target.streaming,
        decoupled=bool(policy.get("decoupled")),
        compression=target.compression,
        cancel_percent=load.cancel_percent,
        max_in_flight=load.max_in_flight,
        streams_per_connection=target.streams_per_connection,
        seed=plain.random_seed,
    )


def exit_code(measurements: Iterable[Measurement]) -> ExitCode:
    """The worst of all levels."""
    codes = {ExitCode.OK}
    for measurement in measurements:
        if measurement.client.is_bottleneck:
            codes.add(ExitCode.CLIENT_WAS_BOTTLENECK)
        if not measurement.is_stable:
            codes.add(ExitCode.UNSTABLE)
    return min(codes, key=_ORDER.index)


def _batches(metadata: dict[str, Any], config: dict[str, Any] | None) -> bool:
    """Whether the first dimension is the batch's."""
    if config is not None:
        return int(config.get("max_batch_size") or 0) > 0
    return all(each["shape"][:1] == [-1] for each in metadata["inputs"])


def _print(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _print_progress(progress: Progress) -> None:
    state = f"window {progress.windows + 1}" if progress.is_warm else "warm-up"
    line = (
        f"  {progress.elapsed_s:6.1f} s  {state:10} {progress.requests_per_s:9.1f}/s"
        f"  p50 {progress.p50_ns / 1000:.0f}  p99 {progress.p99_ns / 1000:.0f} usec"
        f"  {progress.in_flight} in flight"
    )
    _print([line])
