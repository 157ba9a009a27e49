"""`nereid perf run`: measures each level, and prints what it showed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from nereid.perf.exit_codes import ExitCode
from nereid.perf.plain_requests import SameSource, UnknownShapeError, plain_requests
from nereid.perf.plan import Plan, Workload
from nereid.perf.server import Server, ServerError
from nereid.perf.session import Progress, Session, SessionError
from nereid.perf.settings import RunSettings, parse_run
from nereid.perf.summary import level_text, summary_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.perf.measurement import Measurement

_ORDER: Final = tuple(ExitCode)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    settings = parse_run(argv)
    measurements: list[Measurement] = []
    try:
        server = Server(settings.endpoint)
        plan = plan_of(settings, server)
        with Session(
            plan,
            settings.windows,
            server=server,
            bls_models=settings.bls_models,
            metrics_url=settings.metrics_url,
            metrics_interval_s=settings.metrics_interval_s,
            records=settings.records,
            on_progress=_print_progress if settings.verbose else None,
        ) as session:
            for level in settings.levels:
                _print([level_text(level)])
                measurements.append(session.measure(level))
                _print([*summary_lines(measurements[-1]), ""])
    except (OSError, ServerError, SessionError, UnknownShapeError) as error:
        sys.stderr.write(f"nereid perf: {error}\n")
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
    metadata = server.metadata(settings.model, settings.version)
    config = server.config(settings.model, settings.version)
    requests = plain_requests(
        metadata,
        settings.endpoint.protocol,
        version=settings.version,
        batch_size=settings.batch_size,
        batches=_batches(metadata, config),
        shapes=settings.shapes,
        string_length=settings.string_length,
        zero=settings.input_data == "zero",
        seed=settings.seed,
    )
    policy = (config or {}).get("model_transaction_policy") or {}
    return Plan(
        endpoint=settings.endpoint,
        workloads=(Workload(settings.model, settings.version),),
        make_source=SameSource(requests),
        workers=settings.workers,
        shape=settings.shape,
        streaming=settings.streaming,
        decoupled=bool(policy.get("decoupled")),
        compression=settings.compression,
        cancel_percent=settings.cancel_percent,
        max_in_flight=settings.max_in_flight,
        streams_per_connection=settings.streams_per_connection,
        seed=settings.seed,
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
