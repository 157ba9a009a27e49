"""Flags of `nereid perf run`: the server, the load, the measurement."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from nereid.config.flags import Topic, boolean, choice, flag, integer
from nereid.core.files.json_document import read_document
from nereid.rpc.net.address import is_address
from nereid_perf.endpoint import Endpoint, TlsSettings
from nereid_perf.inputs.text_calls import ENDPOINTS, endpoint_path
from nereid_perf.load.shape import LoadShape
from nereid_perf.measurement import LoadLevel
from nereid_perf.session import WindowSettings
from nereid_perf.windows.stability import ConfidenceInterval, LastThree, StabilityRule

if TYPE_CHECKING:
    from nereid_perf.endpoint import Protocol
    from nereid_perf.load.arrivals import Distribution
    from nereid_perf.plan import Compression

_PORTS: Final = {"http": 8000, "grpc": 8001}
_NS_PER_US: Final = 1000
_HTTPS: Final = "https://"


def _number(least: float, most: float = float("inf")) -> Any:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            bound = f"of at least {least:g}" if most == float("inf") else f"{least:g} to {most:g}"
            raise ValueError(f"expected a number {bound}")
        return value

    return parse


def _numbers(form: str) -> Any:
    """Return a parser of numbers >= 0 with colons between them; "" gives ()."""

    def parse(text: str) -> tuple[float, ...]:
        if not text:
            return ()
        try:
            numbers = tuple(float(number) for number in text.split(":"))
        except ValueError:
            numbers = ()
        if len(numbers) != form.count(":") + 1 or not all(0 <= number < 1e12 for number in numbers):
            raise ValueError(f"expected {form}")
        return numbers

    return parse


def header(text: str) -> tuple[str, str]:
    """Parse "NAME: VALUE" into its parts."""
    name, colon, value = text.partition(":")
    if not (colon and name.strip()):
        raise ValueError("expected NAME: VALUE")
    return name.strip(), value.strip()


def _protocol(text: str) -> Any:
    # perf_analyzer's documentation writes gRPC.
    return choice("http", "grpc")(text.lower())


def _service_kind(text: str) -> Any:
    # Empty: as --endpoint says.
    return text and choice("triton", "openai")(text.lower())


def _percentile(text: str) -> str:
    if text == "-1":
        # perf_analyzer's default: the mean.
        return ""
    if text:
        _number(0.001, 100)(text)
    return text


def _intervals(text: str) -> tuple[int, ...]:
    try:
        gaps = tuple(round(float(line) * _NS_PER_US) for line in read_document(Path(text)).split())
    except OSError as error:
        raise ValueError(str(error)) from error
    except (ValueError, OverflowError):
        gaps = ()
    if not gaps or min(gaps) < 0 or not any(gaps):
        raise ValueError("expected a file of microseconds, one a line")
    return gaps


@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """Measure a KServe v2 server: Nereid, Triton, MLServer, KServe."""

    TOPIC: ClassVar = Topic.TARGET

    url: str = flag(
        "", "host:port or unix:/path; https:// for TLS; else localhost:8000, with -i grpc 8001",
        aliases=("-u",),
    )  # fmt: skip
    protocol: str = flag("http", "http or grpc", _protocol, aliases=("-i",))
    endpoint: str = flag(
        "", f"of OpenAI's API: {', '.join(ENDPOINTS)}, or a path such as v1/embeddings",
        endpoint_path,
    )  # fmt: skip
    service_kind: str = flag(
        "", "triton: any KServe v2 server, or openai, whose --endpoint is chat by default",
        _service_kind,
    )  # fmt: skip
    streaming: bool = flag(
        False, "over gRPC streams, as decoupled models need; with chat, as events", boolean,
        bare="true",
    )  # fmt: skip
    sync: bool = flag(
        False, "accepted for perf_analyzer's sake, as there is one way to send", boolean,
        aliases=("--async", "-a"), bare="true",
    )  # fmt: skip
    header: tuple[tuple[str, str], ...] = flag(
        (), "'NAME: VALUE', sent with each request", header, aliases=("-H",), repeated=True
    )
    server_timing: bool = flag(
        False,
        "have responses say where their time went (Server-Timing; asks with 'nereid-timing: 1')",
        boolean,
        bare="true",
    )
    grpc_compression_algorithm: str = flag(
        "none", "none, gzip or deflate: of requests, over either protocol",
        choice("none", "gzip", "deflate"), aliases=("--compression",),
    )  # fmt: skip
    ssl_grpc_use_ssl: bool = flag(False, "TLS", boolean, aliases=("--ssl",), bare="true")
    ssl_grpc_root_certifications_file: str = flag(
        "", "PEM file of the authorities to trust; else the system's",
        aliases=("--ssl-https-ca-certificates-file",),
    )  # fmt: skip
    ssl_grpc_certificate_chain_file: str = flag(
        "", "PEM file of our certificate", aliases=("--ssl-https-client-certificate-file",)
    )
    ssl_grpc_private_key_file: str = flag(
        "", "PEM file of its key", aliases=("--ssl-https-private-key-file",)
    )
    streams_per_connection: int = flag(
        8, "gRPC calls on one connection, or requests on its stream", integer(1, 100_000)
    )
    collect_metrics: bool = flag(
        False, "read --metrics-url while it is measured", boolean, bare="true"
    )
    metrics_url: str = flag("localhost:8002/metrics", "the server's page of metrics")
    metrics_interval: float = flag(1000.0, "ms from one look to the next", _number(10))
    bls_composing_models: str = flag(
        "", "models that the model calls, by commas: their statistics are shown as well"
    )

    @property
    def _address(self) -> str:
        address = self.url or f"localhost:{_PORTS[self.protocol]}"
        return address.removeprefix(_HTTPS).removeprefix("http://").rstrip("/")

    @property
    def _is_secure(self) -> bool:
        return self.ssl_grpc_use_ssl or self.url.startswith(_HTTPS)

    @property
    def _pems(self) -> tuple[str, str, str]:
        return (
            self.ssl_grpc_root_certifications_file,
            self.ssl_grpc_certificate_chain_file,
            self.ssl_grpc_private_key_file,
        )

    def errors(self) -> list[str]:
        """Return the errors in these settings, one line each."""
        errors = []
        if not is_address(self._address):
            errors.append(f"--url: '{self.url}': expected host:port or unix:/path")
        if self.path and self.protocol != "http":
            errors.append("--endpoint needs -i http")
        if self.streaming and self.protocol != "grpc" and not self.path:
            errors.append("--streaming needs -i grpc, or --endpoint chat")
        if any(self._pems) and not self._is_secure:
            errors.append("TLS files are given: add --ssl, or https:// to --url")
        if self.collect_metrics and not self.metrics_page.startswith(("http://", "https://")):
            errors.append(f"--metrics-url: '{self.metrics_url}': expected host:port/path")
        return errors

    @property
    def path(self) -> str:
        """Path of the calls to OpenAI's API; "" for inference requests."""
        if self.service_kind == "triton":
            return ""
        return self.endpoint or (ENDPOINTS["chat"].path if self.service_kind else "")

    @property
    def server(self) -> Endpoint:
        """Address of the server, with TLS and headers."""
        tls = TlsSettings(*self._pems) if self._is_secure else None
        return Endpoint(cast("Protocol", self.protocol), self._address, tls, self.header)

    @property
    def compression(self) -> Compression:
        """Compression algorithm of requests."""
        return cast("Compression", self.grpc_compression_algorithm)

    @property
    def metrics_page(self) -> str:
        """URL of the metrics page; "" if no page is read."""
        if not self.collect_metrics:
            return ""
        return self.metrics_url if "://" in self.metrics_url else f"http://{self.metrics_url}"

    @property
    def bls_models(self) -> tuple[str, ...]:
        """Names of the models that the model calls."""
        return tuple(filter(None, self.bls_composing_models.split(",")))


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """Shape of the load at any level, and loads that are not a range of levels."""

    TOPIC: ClassVar = Topic.LOAD

    request_distribution: str = flag(
        "constant", "of the gaps between requests at a rate: constant, poisson, gamma",
        choice("constant", "poisson", "gamma"),
    )  # fmt: skip
    gamma_variation: float = flag(
        2.0, "standard deviation of gamma's gaps over their mean: 1 is poisson, more is clusters",
        _number(0.01, 100),
    )  # fmt: skip
    ramp: tuple[float, ...] = flag(
        (), "RATE:SECONDS: a rate begins with this one, and reaches the level's in so long",
        _numbers("RATE:SECONDS"),
    )  # fmt: skip
    bursts: tuple[float, ...] = flag(
        (), "RATE:SECONDS:PERIOD: every PERIOD seconds the rate is this one for so long",
        _numbers("RATE:SECONDS:PERIOD"),
    )  # fmt: skip
    request_intervals: tuple[int, ...] = flag(
        (), "a file of microseconds between requests, one a line, again and again", _intervals
    )
    periodic_concurrency_range: tuple[float, ...] = flag(
        (), "FIRST:LAST:STEP: requests in flight, a step more after each --request-period requests",
        _numbers("FIRST:LAST:STEP"),
    )  # fmt: skip
    request_period: int = flag(10, "see there", integer(1, 1 << 30))
    replay_speed: float = flag(
        1.0, "of --replay: 2 sends it in half the time", _number(0.001, 1000)
    )
    cancel_percent: float = flag(
        0.0, "of requests, cancelled half of the mean service time after they were sent",
        _number(0, 100),
    )  # fmt: skip
    max_in_flight: int = flag(
        1024, "at a rate: further requests wait, which their response time shows",
        integer(1, 1 << 16),
    )  # fmt: skip
    workers: int = flag(
        1, "processes that send: more where the client is the bottleneck", integer(1, 256)
    )

    def errors(self) -> list[str]:
        """Return the errors in these settings, one line each."""
        errors = []
        if self.request_intervals and self.periodic_concurrency_range:
            errors.append("--request-intervals and --periodic-concurrency-range: give one of them")
        if self.ramp and self.bursts:
            errors.append("--ramp and --bursts: give one of them")
        if self.ramp and not self.ramp[1]:
            errors.append("--ramp: expected more than 0 seconds")
        if self.bursts and not (self.bursts[0] and 0 < self.bursts[1] < self.bursts[2]):
            errors.append("--bursts: expected a rate, and SECONDS less than PERIOD")
        first, last, step = self.periodic_concurrency_range or (1, 1, 1)
        if not (1 <= first <= last and step >= 1):
            errors.append("--periodic-concurrency-range: expected FIRST from 1, up to LAST")
        return errors

    @property
    def level(self) -> LoadLevel | None:
        """Level of a load that is not a range of levels, or `None`."""
        if self.request_intervals:
            return LoadLevel("trace", 1.0)
        if self.periodic_concurrency_range:
            return LoadLevel("concurrency", self.periodic_concurrency_range[1])
        return None

    @property
    def shape(self) -> LoadShape:
        """Shape of the load."""
        ramp = self.ramp or (0, 0)
        bursts = self.bursts or (0, 0, 0)
        first, _, step = self.periodic_concurrency_range or (1, 1, 1)
        return LoadShape(
            distribution=cast("Distribution", self.request_distribution),
            gamma_variation=self.gamma_variation,
            ramp_from=ramp[0],
            ramp_s=ramp[1],
            burst_rate=bursts[0],
            burst_s=bursts[1],
            burst_period_s=bursts[2],
            intervals_ns=self.request_intervals,
            periodic_from=int(first),
            periodic_step=int(step),
            requests_per_step=self.request_period if self.periodic_concurrency_range else 0,
        )


@dataclass(frozen=True, kw_only=True)
class MeasurementSettings:
    """Length of the measurement, and which of its data are kept."""

    TOPIC: ClassVar = Topic.MEASUREMENT

    measurement_mode: str = flag(
        "time_windows", "time_windows or count_windows", choice("time_windows", "count_windows")
    )
    measurement_interval: float = flag(5000.0, "ms of a window", _number(10), aliases=("-p",))
    measurement_request_count: int = flag(
        50, "of a window, with count_windows", integer(1, 1 << 40)
    )
    stability_percentage: float = flag(
        10.0, "by which windows may differ", _number(0.01), aliases=("-s",)
    )
    stability_rule: str = flag(
        "last_three",
        "last_three: the last windows within the percentage of each other;"
        " confidence: 95 % intervals of all windows' means within it",
        choice("last_three", "confidence"),
    )  # fmt: skip
    max_trials: int = flag(10, "windows at most", integer(1, 1 << 20), aliases=("-r",))
    percentile: str = flag(
        "",
        "of the response time: which one has to be stable, counts for --latency-threshold (without"
        " it, the mean does for both) and for the curve's knee (p99)",
        _percentile,
    )
    request_count: int = flag(0, "send so many requests, in no windows", integer(0, 1 << 40))
    drain_timeout_secs: float = flag(
        10.0,
        "how long requests in flight at the end are waited for; with --request-count, how long none"
        " of them may end",
        _number(0.01, 1e6),
    )
    warmup_request_count: int | None = flag(
        None, "requests before the first window; else until latencies are even", integer(0, 1 << 40)
    )
    records: str = flag("", "a CSV file that gets a line for each request")

    @property
    def windows(self) -> WindowSettings:
        """Windows of the measurement."""
        percent = self.stability_percentage
        rule: StabilityRule = LastThree(percent)
        if self.stability_rule == "confidence":
            rule = ConfidenceInterval(percent)
        return WindowSettings(
            mode="count" if self.measurement_mode == "count_windows" else "time",
            interval_s=self.measurement_interval / 1000,
            request_count=self.measurement_request_count,
            rule=rule,
            max_trials=self.max_trials,
            percentile=float(self.percentile) if self.percentile else None,
            warm_up="auto" if self.warmup_request_count is None else self.warmup_request_count,
            total_requests=self.request_count,
            drain_s=self.drain_timeout_secs,
        )
