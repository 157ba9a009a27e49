"""The flags of `nereid perf run`, with perf_analyzer's names where it has the thing. Pure, but for
the files that flags name.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.perf.endpoint import Endpoint, TlsSettings
from nereid.perf.exit_codes import TEXT
from nereid.perf.load.shape import LoadShape
from nereid.perf.measurement import LoadLevel
from nereid.perf.session import WindowSettings
from nereid.perf.windows.stability import ConfidenceInterval, LastThree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DESCRIPTION: Final = """\
Measure a KServe v2 server: Nereid, Triton, MLServer, KServe. Inputs are made from the model's
metadata. Load is a number of requests in flight (--concurrency-range) or a rate
(--request-rate-range), on a schedule that does not wait for the server.
"""
_US: Final = 1000
_PORTS: Final = {"http": 8000, "grpc": 8001}


class SettingsError(Exception):
    """Flags that cannot be; the text says why."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Of one run. levels: what is measured, in order."""

    endpoint: Endpoint
    model: str
    version: str
    batch_size: int
    streaming: bool
    compression: Any
    levels: tuple[LoadLevel, ...]
    shape: LoadShape
    windows: WindowSettings
    input_data: str
    shapes: dict[str, tuple[int, ...]]
    string_length: int
    workers: int
    max_in_flight: int
    streams_per_connection: int
    cancel_percent: float
    seed: int
    bls_models: tuple[str, ...]
    metrics_url: str
    metrics_interval_s: float
    records: Path | None
    verbose: bool


def parse_run(argv: Sequence[str]) -> RunSettings:
    """Exits with 2 and a text for flags that cannot be."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        return _settings(given)
    except SettingsError as error:
        parser.error(str(error))


def _settings(given: argparse.Namespace) -> RunSettings:
    levels, shape = _load(given)
    if given.streaming and given.protocol != "grpc":
        raise SettingsError("--streaming needs -i grpc")
    if not 0 <= given.cancel_percent <= 100:
        raise SettingsError("--cancel-percent: expected 0 to 100")
    for name in ("workers", "max_in_flight", "streams_per_connection", "batch_size", "max_trials"):
        if getattr(given, name) < 1:
            raise SettingsError(f"--{name.replace('_', '-')}: expected at least 1")
    endpoint = _endpoint(given)
    return RunSettings(
        endpoint=endpoint,
        model=given.model,
        version=given.version,
        batch_size=given.batch_size,
        streaming=given.streaming,
        compression=given.compression,
        levels=levels,
        shape=shape,
        windows=_windows(given),
        input_data=given.input_data,
        shapes=dict(map(_shape, given.shape)),
        string_length=given.string_length,
        workers=given.workers,
        max_in_flight=given.max_in_flight,
        streams_per_connection=given.streams_per_connection,
        cancel_percent=given.cancel_percent,
        seed=given.seed,
        bls_models=tuple(filter(None, given.bls_models.split(","))),
        metrics_url=_metrics_url(given),
        metrics_interval_s=given.metrics_interval / 1000,
        records=given.records,
        verbose=given.verbose,
    )


def _load(given: argparse.Namespace) -> tuple[tuple[LoadLevel, ...], LoadShape]:
    shape: dict[str, Any] = {
        "distribution": given.distribution,
        "gamma_variation": given.gamma_variation,
    }
    modes = [
        name
        for name in ("concurrency_range", "request_rate_range", "request_intervals", "periodic")
        if getattr(given, name)
    ]
    if len(modes) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in modes)
        raise SettingsError(f"{names} exclude each other")
    if given.request_rate_range:
        levels = [LoadLevel("rate", rate) for rate in _steps(given.request_rate_range)]
        if given.ramp:
            shape["ramp_from"], shape["ramp_s"] = _numbers("--ramp", given.ramp, "FROM:SECONDS")
        if given.bursts:
            shape["burst_rate"], shape["burst_s"], shape["burst_period_s"] = _numbers(
                "--bursts", given.bursts, "RATE:SECONDS:PERIOD"
            )
    elif given.request_intervals:
        levels = [LoadLevel("trace", 1.0)]
        shape["intervals_ns"] = _intervals_ns(given.request_intervals)
    elif given.periodic:
        first, last, step = _numbers("--periodic-concurrency-range", given.periodic, "A:B:STEP")
        levels = [LoadLevel("concurrency", last)]
        shape["periodic_from"], shape["periodic_step"] = int(first), int(step)
        shape["requests_per_step"] = given.request_period
    else:
        steps = _steps(given.concurrency_range or "1")
        levels = [LoadLevel("concurrency", number) for number in steps]
    if any(each.value <= 0 for each in levels):
        raise SettingsError("load has to be more than 0")
    return tuple(levels), LoadShape(**shape)


def _steps(text: str) -> Iterator[float]:
    """A, A:B or A:B:STEP, with both ends."""
    try:
        first, last, step, *more = (*map(float, text.split(":")), *(None,) * 2)[:4]
    except ValueError:
        raise SettingsError(f"'{text}': expected numbers: A, A:B or A:B:STEP") from None
    del more
    assert first is not None, "split() yields at least one"
    last = first if last is None else last
    step = 1.0 if step is None else step
    if step <= 0 or last < first:
        raise SettingsError(f"'{text}': expected A:B:STEP with A up to B")
    return (first + number * step for number in range(int((last - first) / step + 1e-9) + 1))


def _numbers(flag: str, text: str, form: str) -> list[float]:
    try:
        numbers = [float(each) for each in text.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) != form.count(":") + 1 or any(each < 0 for each in numbers):
        raise SettingsError(f"{flag}: '{text}': expected {form}")
    return numbers


def _intervals_ns(path: Path) -> tuple[int, ...]:
    try:
        gaps = tuple(round(float(line) * _US) for line in path.read_text().split())
    except OSError as error:
        raise SettingsError(f"--request-intervals: {error}") from error
    except ValueError:
        gaps = ()
    if not gaps or min(gaps) < 0 or not any(gaps):
        raise SettingsError(f"--request-intervals: {path}: expected microseconds, one a line")
    return gaps


def _windows(given: argparse.Namespace) -> WindowSettings:
    percent = given.stability_percentage
    if given.stability_rule == "confidence":
        rule: LastThree | ConfidenceInterval = ConfidenceInterval(percent)
    else:
        rule = LastThree(percent)
    return WindowSettings(
        mode="count" if given.measurement_mode == "count_windows" else "time",
        interval_s=given.measurement_interval / 1000,
        request_count=given.measurement_request_count,
        rule=rule,
        max_trials=given.max_trials,
        percentile=given.percentile,
        warm_up="auto" if given.warmup_request_count is None else given.warmup_request_count,
        total_requests=given.request_count,
    )


def _endpoint(given: argparse.Namespace) -> Endpoint:
    protocol = given.protocol
    address = given.url or f"localhost:{_PORTS[protocol]}"
    secure = given.ssl or address.startswith("https://")
    address = address.removeprefix("https://").removeprefix("http://").rstrip("/")
    headers = []
    for text in given.header:
        name, colon, value = text.partition(":")
        if not (colon and name.strip()):
            raise SettingsError(f"-H: '{text}': expected NAME: VALUE")
        headers.append((name.strip(), value.strip()))
    tls = TlsSettings(given.ssl_ca, given.ssl_cert, given.ssl_key) if secure else None
    if tls is None and (given.ssl_ca or given.ssl_cert or given.ssl_key):
        raise SettingsError("TLS files are given: --ssl-grpc-use-ssl, or a URL with https://")
    return Endpoint(protocol, address, tls, tuple(headers))


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, dims = text.rpartition(":")
    try:
        if colon and name:
            return name, tuple(map(int, dims.split(",")))
    except ValueError:
        pass
    raise SettingsError(f"--shape: '{text}': expected NAME:D1,D2,...")


def _metrics_url(given: argparse.Namespace) -> str:
    if not given.collect_metrics:
        return ""
    url: str = given.metrics_url
    if "://" not in url:
        url = f"http://{url}"
    if not url.startswith(("http://", "https://")):
        raise SettingsError(f"--metrics-url: '{url}': expected host:port/path")
    return url


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nereid perf",
        description=_DESCRIPTION,
        epilog=TEXT,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_target(parser.add_argument_group("the server").add_argument)
    _add_inputs(parser.add_argument_group("inputs").add_argument)
    _add_load(parser.add_argument_group("load").add_argument)
    _add_windows(parser.add_argument_group("measurement").add_argument)
    return parser


def _add_target(add: Any) -> None:
    add("-m", "--model-name", dest="model", required=True, metavar="NAME")
    add("-x", "--model-version", dest="version", default="", metavar="VERSION")
    add("-u", "--url", dest="url", default="", metavar="HOST:PORT",
        help="default: localhost:8000, with -i grpc localhost:8001; or unix:/path")  # fmt: skip
    add("-i", "--protocol", dest="protocol", type=str.lower, choices=("http", "grpc"),
        default="http")  # fmt: skip
    add("--streaming", action="store_true", help="gRPC streams; decoupled models need them")
    add("--async", "-a", "--sync", action="store_true", dest="ignored",
        help="accepted for perf_analyzer's sake: there is one way to send")  # fmt: skip
    add("-H", "--header", action="append", default=[], metavar="'NAME: VALUE'",
        help="sent with each request; may be repeated")  # fmt: skip
    add("--grpc-compression-algorithm", "--compression", dest="compression", default="none",
        choices=("none", "gzip", "deflate"), help="of requests, over either protocol")  # fmt: skip
    add("--ssl-grpc-use-ssl", "--ssl", dest="ssl", action="store_true", help="TLS")
    add("--ssl-grpc-root-certifications-file", "--ssl-https-ca-certificates-file", dest="ssl_ca",
        default="", metavar="PEM")  # fmt: skip
    add("--ssl-grpc-certificate-chain-file", "--ssl-https-client-certificate-file",
        dest="ssl_cert", default="", metavar="PEM")  # fmt: skip
    add("--ssl-grpc-private-key-file", "--ssl-https-private-key-file", dest="ssl_key", default="",
        metavar="PEM")  # fmt: skip


def _add_inputs(add: Any) -> None:
    add("-b", "--batch-size", dest="batch_size", type=int, default=1, metavar="N")
    add("--input-data", choices=("zero", "random"), default="random")
    add("--shape", action="append", default=[], metavar="NAME:D1,D2",
        help="of an input with dimensions that vary; may be repeated")  # fmt: skip
    add("--string-length", type=int, default=128, metavar="N")


def _add_load(add: Any) -> None:
    add("--concurrency-range", default="", metavar="A:B:STEP",
        help="requests in flight (default: 1)")  # fmt: skip
    add("--request-rate-range", default="", metavar="A:B:STEP", help="requests per second")
    add("--request-distribution", dest="distribution", default="constant",
        choices=("constant", "poisson", "gamma"), help="of the gaps between them")  # fmt: skip
    add("--gamma-variation", type=float, default=2.0, metavar="CV",
        help="standard deviation of gamma's gaps over their mean; 1 is poisson, more comes in"
        " clusters (default: 2)")  # fmt: skip
    add("--ramp", default="", metavar="FROM:SECONDS",
        help="the rate grows from FROM to the level's in so many seconds")  # fmt: skip
    add("--bursts", default="", metavar="RATE:SECONDS:PERIOD",
        help="every PERIOD seconds the rate is RATE for so many seconds")  # fmt: skip
    add("--request-intervals", type=Path, default=None, metavar="FILE",
        help="microseconds between requests, one a line, again and again")  # fmt: skip
    add("--periodic-concurrency-range", dest="periodic", default="", metavar="A:B:STEP",
        help="from A in flight to B, STEP more after each --request-period requests")  # fmt: skip
    add("--request-period", type=int, default=10, metavar="N")
    add("--cancel-percent", type=float, default=0.0, metavar="P",
        help="of requests, cancelled after they were sent")  # fmt: skip
    add("--max-in-flight", type=int, default=1024, metavar="N",
        help="of a rate: further requests wait, and their response time counts (default: 1024)",
        )  # fmt: skip
    add("--streams-per-connection", type=int, default=8, metavar="N",
        help="gRPC calls, or a stream's requests, on one connection (default: 8)")  # fmt: skip
    add("--workers", type=int, default=1, metavar="N",
        help="processes that send (default: 1); more where the client is the bottleneck",
        )  # fmt: skip
    add("--random-seed", "--seed", dest="seed", type=int, default=0, metavar="N")


def _add_windows(add: Any) -> None:
    add("--measurement-mode", choices=("time_windows", "count_windows"), default="time_windows")
    add("-p", "--measurement-interval", dest="measurement_interval", type=float, default=5000.0,
        metavar="MS")  # fmt: skip
    add("--measurement-request-count", type=int, default=50, metavar="N")
    add("-s", "--stability-percentage", dest="stability_percentage", type=float, default=10.0,
        metavar="PERCENT")  # fmt: skip
    add("--stability-rule", choices=("last_three", "confidence"), default="last_three",
        help="the last three windows within the percentage of each other; or 95 %% confidence"
        " intervals of all windows' means within it")  # fmt: skip
    add("-r", "--max-trials", dest="max_trials", type=int, default=10, metavar="WINDOWS")
    add("--percentile", type=float, default=None, metavar="P",
        help="of the latency that has to be stable (default: the mean)")  # fmt: skip
    add("--request-count", type=int, default=0, metavar="N", help="so many requests, no windows")
    add("--warmup-request-count", type=int, default=None, metavar="N",
        help="requests before the first window (default: until latencies are even)")  # fmt: skip
    add("--collect-metrics", action="store_true")
    add("--metrics-url", default="localhost:8002/metrics", metavar="URL")
    add("--metrics-interval", type=float, default=1000.0, metavar="MS")
    add("--bls-composing-models", dest="bls_models", default="", metavar="NAMES",
        help="models that the model calls, by commas: their statistics are shown")  # fmt: skip
    add("--records", type=Path, default=None, metavar="CSV", help="a line for each request")
    add("-v", "--verbose", action="store_true", help="say what each half second shows")
