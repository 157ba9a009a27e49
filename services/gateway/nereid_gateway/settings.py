"""Flags and environment variables of the gateway; no other module of the gateway reads them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from nereid.config import flags
from nereid.config.flags import Topic, flag
from nereid.config.inherited_secrets import read_environ
from nereid.config.recovery import RecoverySettings
from nereid.config.settings_reader import read_settings
from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.settings import MeshAccessSettings
from nereid.observability.logging import LogSettings
from nereid.observability.trace_config import TraceSettings
from nereid.rpc.grpc.compression import LEVELS
from nereid.rpc.net.limits.budget import BudgetLimits
from nereid.rpc.net.scheduler_addresses import address_list
from nereid.rpc.net.tls_files import Tls, TlsFiles, reason
from nereid.shm.settings import SegmentSettings
from nereid.timeline.settings import TimelineSettings
from nereid_gateway.core.access.api_groups import APIS, CONTROL_APIS
from nereid_gateway.guards.policy import restricted_apis
from nereid_gateway.managed_settings import NOT_IN_VERTEX_AI, ManagedSettings
from nereid_gateway.server import header_forwarding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM: Final = "nereid_gateway"
_MIB: Final = 1 << 20
_ALPN: Final = {"http": "http/1.1", "grpc": "h2"}


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """Flags of the HTTP port."""

    TOPIC: ClassVar = Topic.HTTP

    allow_http: bool = flag(True, "serve HTTP", flags.boolean, platform=NOT_IN_VERTEX_AI)
    http_address: str = flag("0.0.0.0", "the interface of the HTTP port, or unix:/path")
    http_port: int = flag(8000, "the HTTP port; 0 takes a free one", flags.port)
    reuse_http_port: bool = flag(False, "let other processes share the HTTP port", flags.boolean)
    http_max_input_size: int = flag(
        64 * _MIB,
        "largest HTTP body without binary tensors, in bytes, also decompressed",
        flags.integer(1),
    )
    http_max_header_size: int = flag(
        65536, "largest headers of an HTTP request, in bytes", flags.integer(1024)
    )
    http_max_pipelined: int = flag(32, "pending requests of one HTTP connection", flags.integer(1))
    http_request_timeout_secs: float = flag(
        30.0,
        "how long a request's headers may take to arrive over HTTP/1.1, and how long a body may"
        " bring nothing, over gRPC as well",
        flags.seconds,
    )
    http_idle_timeout_secs: float = flag(
        600.0, "when a silent HTTP connection is closed", flags.seconds
    )

    http_header_forward_pattern: str = flag(
        "",
        "HTTP headers whose names match this RE2 pattern become parameters of their request",
        header_forwarding.checked,
    )
    http_restricted_api: tuple[str, ...] = flag(
        (),
        "<api>,<api>:<header>=<value>: APIs restricted to HTTP requests with this header",
        restricted_apis.checked,
        repeated=True,
        secret=True,
    )

    console: bool = flag(
        False,
        "serve the console at /console of the HTTP port: a page for whoever operates the mesh",
        flags.boolean,
        bare="true",
    )

    openai_api: bool = flag(
        False,
        "serve OpenAI's API and its relatives, such as /v1/embeddings and /v1/rerank, at the HTTP"
        " port, for models with a tokenizer",
        flags.boolean,
        bare="true",
    )

    access_log: str = flag(
        "", "append a line of JSON for each inference request to this file; -: standard output"
    )
    access_log_rate: int = flag(
        1, "with --access-log, log one of this many requests", flags.integer(1)
    )

    http_use_ssl: bool = flag(False, "serve HTTP over TLS", flags.boolean, bare="true")
    http_use_ssl_mutual: bool = flag(
        False, "ask HTTP clients for their certificate; implies --http-use-ssl", flags.boolean,
        bare="true",
    )  # fmt: skip
    http_server_cert: str = flag("", "PEM file of the HTTP server's certificate chain")
    http_server_key: str = flag("", "PEM file of the HTTP server's private key")
    http_root_cert: str = flag("", "PEM file of the certificates that sign clients'")


@dataclass(frozen=True, kw_only=True)
class GrpcSettings:
    """Flags of the gRPC port."""

    TOPIC: ClassVar = Topic.GRPC

    allow_grpc: bool = flag(True, "serve gRPC", flags.boolean, platform=NOT_IN_VERTEX_AI)
    grpc_address: str = flag("0.0.0.0", "the interface of the gRPC port, or unix:/path")
    grpc_port: int = flag(8001, "the gRPC port; 0 takes a free one", flags.port)
    reuse_grpc_port: bool = flag(False, "let other processes share the gRPC port", flags.boolean)
    grpc_engine: str = flag(
        "nereid", "what speaks gRPC on the edge: nereid or grpcio", flags.choice("nereid", "grpcio")
    )
    grpc_keepalive_time: int = flag(
        7200000, "milliseconds of silence before a gRPC client is pinged", flags.integer(1)
    )
    grpc_keepalive_timeout: int = flag(
        20000, "milliseconds that a gRPC client has to acknowledge a ping", flags.integer(1)
    )
    grpc_max_input_size: int = flag(
        (1 << 31) - 1,
        "largest gRPC message, and HTTP body with binary tensors, in bytes, also decompressed",
        flags.integer(1, (1 << 31) - 1),
    )
    grpc_idle_timeout_secs: float = flag(
        600.0,
        "when a gRPC connection without calls and pings is ended; 0: never",
        flags.seconds,
    )
    grpc_max_connection_age: int = flag(
        0, "milliseconds after which a gRPC connection is ended; 0: never", flags.integer(0)
    )
    grpc_header_forward_pattern: str = flag(
        "",
        "gRPC metadata whose keys match this RE2 pattern become parameters of their request",
        header_forwarding.checked,
    )
    grpc_restricted_protocol: tuple[str, ...] = flag(
        (),
        "<api>,<api>:<key>=<value>: APIs restricted to calls with the metadata"
        " triton-grpc-protocol-<key>",
        restricted_apis.checked,
        repeated=True,
        secret=True,
    )
    grpc_max_connection_age_grace: int = flag(
        0,
        "milliseconds that calls get on an ended gRPC connection; 0: all they need",
        flags.integer(0),
    )
    grpc_keepalive_permit_without_calls: bool = flag(
        False, "ping gRPC clients without a pending call as well", flags.boolean, bare="true"
    )
    grpc_http2_max_pings_without_data: int = flag(
        2, "pings to a gRPC client between two messages; grpcio engine only", flags.integer(0)
    )
    grpc_http2_min_recv_ping_interval_without_data: int = flag(
        300000, "milliseconds between a gRPC client's pings; grpcio engine only", flags.integer(0)
    )
    grpc_http2_max_ping_strikes: int = flag(
        2, "early pings before a gRPC client is disconnected; grpcio engine only", flags.integer(0)
    )
    grpc_infer_response_compression_level: str = flag(
        "none", "how much responses to gRPC inference are compressed", flags.choice(*LEVELS)
    )
    # Triton has these flags for its threads and pools. Nereid has no such threads and pools.
    grpc_infer_thread_count: int = flag(2, "accepted and ignored", flags.integer(1))
    grpc_infer_allocation_pool_size: int = flag(8, "accepted and ignored", flags.integer(0))
    grpc_max_response_pool_size: int = flag(8, "accepted and ignored", flags.integer(1))
    http_thread_count: int = flag(8, "accepted and ignored", flags.integer(1))
    grpc_use_ssl: bool = flag(False, "serve gRPC over TLS", flags.boolean)
    grpc_use_ssl_mutual: bool = flag(
        False, "ask gRPC clients for their certificate; implies --grpc-use-ssl", flags.boolean
    )
    grpc_server_cert: str = flag("", "PEM file of the gRPC server's certificate chain")
    grpc_server_key: str = flag("", "PEM file of the gRPC server's private key")
    grpc_root_cert: str = flag("", "PEM file of the certificates that sign clients'")


@dataclass(frozen=True, kw_only=True)
class ControlApiSettings:
    """Flag that opens or closes the APIs which change the server."""

    TOPIC: ClassVar = Topic.MODELS

    open_control_apis: bool = flag(
        True,
        "whether clients without credentials may load and unload models, drain executors, change"
        " trace and log settings and register shared memory; false: only with a restricted API's"
        " header or by --auth-config",
        flags.boolean,
        bare="true",
        hardened="false",
    )


@dataclass(frozen=True, kw_only=True)
class AuthSettings:
    """Flag of client authentication."""

    TOPIC: ClassVar = Topic.AUTHENTICATION

    auth_config: str = flag(
        "",
        "TOML file of the API keys and token issuers whose clients are served, and of their rights"
        " and limits; empty: clients need no credentials",
    )

    def apis_with_credentials(self) -> frozenset[str]:
        """Return the groups of APIs for which every client needs an API key or a token."""
        if not self.auth_config:
            return frozenset()
        # This import and those below are deferred because most meshes start without these modules.
        from nereid_gateway.guards.auth.reload import load_config  # noqa: PLC0415

        return frozenset(APIS) - load_config(self.auth_config).config.open_apis()

    def auth_errors(self) -> list[str]:
        """Return the errors in the file that --auth-config names, one line each."""
        if not self.auth_config:
            return []
        from nereid_gateway.guards.auth.config import AuthConfigError  # noqa: PLC0415
        from nereid_gateway.guards.auth.reload import load_config  # noqa: PLC0415

        try:
            load_config(self.auth_config)
        except AuthConfigError as error:
            return [f"--auth-config: {self.auth_config}: {text}" for text in error.errors]
        return []


@dataclass(frozen=True, kw_only=True)
class ClientShmSettings:
    """Flag that lets clients register shared memory."""

    TOPIC: ClassVar = Topic.SHARED_MEMORY

    allow_client_shm: bool = flag(
        False,
        "let clients of this machine register shared memory; they name what the gateway opens",
        flags.boolean,
        bare="true",
    )


@dataclass(frozen=True, kw_only=True)
class MeshMetricsSettings:
    """Flags of the metrics port, which serves the metrics of the whole mesh."""

    TOPIC: ClassVar = Topic.METRICS

    allow_metrics: bool = flag(True, "serve metrics", flags.boolean, bare="true")
    metrics_address: str = flag(
        "",
        "the interface of the metrics port, or unix:/path; default: HTTP's, or the loopback's",
        hardened="127.0.0.1",
    )
    metrics_port: int = flag(8002, "the metrics port; 0 takes a free one", flags.own_port)
    allow_cpu_metrics: bool = flag(
        True, "metrics of the machines' CPUs and memory", flags.boolean, bare="true"
    )
    allow_gpu_metrics: bool = flag(True, "metrics of the GPUs", flags.boolean, bare="true")


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """Limits on how much clients may use at once, and for how long."""

    TOPIC: ClassVar = Topic.LIMITS

    max_connections: int = flag(
        32768, "open connections on each port before more are refused", flags.integer(1)
    )
    max_connections_per_client: int = flag(
        0,
        "open connections of one client address on each port before more are refused; 0: a quarter"
        " of --max-connections, but at least 1024",
        flags.integer(0),
    )
    write_timeout_secs: float = flag(
        60.0,
        "when a client that reads none of its responses is disconnected; 0: never",
        flags.seconds,
    )
    max_pending_requests: int = flag(
        65536, "pending requests before more are refused", flags.integer(1)
    )
    max_pending_bytes: int = flag(
        4 << 30,
        "bytes of requests, arriving and pending, and of unread responses, before more are"
        " refused; a string element of a large request counts for 192 more",
        flags.integer(1),
    )
    max_client_bytes: int = flag(
        0,
        "bytes of one client address's requests that are still arriving, or large and pending, and"
        " of responses that it has not read; 0: half of --max-pending-bytes",
        flags.integer(0),
    )
    max_connection_bytes: int = flag(
        0,
        "bytes of one connection's requests that are still arriving, of one request's string"
        " elements, and of its inputs in shared memory; 0: a quarter of --max-pending-bytes",
        flags.integer(0),
    )
    max_inflation_ratio: int = flag(
        1000,
        "how many times as large as its compressed form a request may be, past its first 64 MiB;"
        " 0: any number",
        flags.integer(0),
    )
    min_upload_rate: int = flag(
        1024,
        "bytes per second that a request must bring while it arrives, on average over"
        " --http-request-timeout-secs; 0: any rate",
        flags.integer(0),
    )
    upload_timeout_secs: float = flag(
        14400.0, "how long a request may take to arrive in all; 0: any time", flags.seconds
    )
    decoder_processes: int = flag(
        2,
        "processes that decode and encode large JSON, started when needed, beside one for up to 256"
        " KiB; 0: the gateway does it itself, and serves nobody else meanwhile",
        flags.integer(0),
    )
    decoder_memory_bytes: int = flag(
        2 << 30, "memory that a decoder process may allocate", flags.integer(64 << 20)
    )
    decoder_timeout_secs: float = flag(
        30.0, "when a decoder process is killed that is still at one request", flags.seconds
    )
    decoder_max_waiting_bytes: int = flag(
        512 << 20,
        "bytes of requests that wait for a decoder process before more are refused; one client's"
        " address may have half of it",
        flags.integer(1),
    )


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(
    HttpSettings,
    GrpcSettings,
    ControlApiSettings,
    AuthSettings,
    ClientShmSettings,
    MeshMetricsSettings,
    LimitSettings,
    ManagedSettings,
    MeshAccessSettings,
    RecoverySettings,
    TraceSettings,
    TimelineSettings,
    SegmentSettings,
    LogSettings,
):
    """Gateway: serves KServe v2 over HTTP and gRPC, and sends requests to a scheduler."""

    TOPIC: ClassVar = Topic.PROCESSES
    MESH_ROLES: ClassVar = frozenset({Role.GATEWAY})

    scheduler_address: str = flag(
        "127.0.0.1:8003",
        "the scheduler: host:port or unix:/path; several, with commas between them: all of the"
        " mesh's; dns:host:port: every address that the name has, looked up again every few"
        " seconds",
        address_list,
    )
    response_timings: str = flag(
        "requested",
        "whose responses say in Server-Timing where their time went: never, requested (by the"
        " header nereid-timing: 1) or always",
        flags.choice("never", "requested", "always"),
    )
    server_id: str = flag("triton", "the name in server metadata", aliases=("--id",))
    exit_timeout_secs: float = flag(
        30.0, "how long a stopping server waits for pending requests", flags.seconds
    )
    reconnect_timeout_secs: float | None = flag(
        None,
        "how long requests wait for a scheduler that is disconnected; by default as long as a"
        " restart may take (--mesh-restart-secs)",
        flags.seconds,
    )
    control_timeout_secs: float | None = flag(
        None,
        "time limit of a control call to the scheduler; by default --mesh-restart-secs",
        flags.seconds,
    )

    @property
    def budget_limits(self) -> BudgetLimits:
        """Limits on the bytes that the gateway holds for clients."""
        total = self.max_pending_bytes
        return BudgetLimits(
            total_bytes=total,
            client_bytes=self.max_client_bytes or total // 2,
            connection_bytes=self.max_connection_bytes or total // 4,
        )

    @property
    def max_client_connections(self) -> int:
        """Maximum number of open connections of one client on each port."""
        return self.max_connections_per_client or max(1024, self.max_connections // 4)

    @property
    def http_at(self) -> str:
        """Address of the HTTP port: host:port or unix:/path."""
        return flags.listening_address(self.http_address, self.http_port)

    @property
    def grpc_at(self) -> str:
        """Address of the gRPC port: host:port or unix:/path."""
        return flags.listening_address(self.grpc_address, self.grpc_port)

    @property
    def metrics_at(self) -> str:
        """Address of the metrics port.

        By default, the port is on HTTP's interface, or on the loopback if HTTP is on a unix socket.
        """
        interface = self.metrics_address or self._http_interface
        return flags.listening_address(interface, self.metrics_port)

    @property
    def managed_at(self) -> dict[str, str]:
        """Addresses of the managed ports that are served, keyed by "sagemaker" and "vertex-ai"."""
        ports = {"sagemaker": self.sagemaker_port, "vertex-ai": self.vertex_ai_port}
        allowed = {"sagemaker": self.allow_sagemaker, "vertex-ai": self.allow_vertex_ai}
        return {
            name: flags.listening_address(self._http_interface, port)
            for name, port in ports.items()
            if allowed[name]
        }

    @property
    def _http_interface(self) -> str:
        """Interface of the HTTP port, or the loopback if that port is a unix socket."""
        private = self.http_address.startswith("unix:")
        return "127.0.0.1" if private else self.http_address

    def restricted_apis(self, protocol: str) -> frozenset[str]:
        """Return the APIs that require a header on the "http" or "grpc" port."""
        texts = self.http_restricted_api if protocol == "http" else self.grpc_restricted_protocol
        return frozenset(restricted_apis.gather(texts))

    def closed_apis(self, protocol: str) -> frozenset[str]:
        """Return the control APIs that are closed because no header or credential guards them.

        protocol: the port, "http" or "grpc". The set is empty if open_control_apis is set.
        """
        if self.open_control_apis:
            return frozenset()
        return CONTROL_APIS - self.restricted_apis(protocol) - self.apis_with_credentials()

    def tls(self, protocol: str) -> Tls | None:
        """Return the TLS settings of the "http" or "grpc" port, or None for clear text.

        Raises:
            OSError: the certificate files or the key file cannot be used.
        """
        mutual = getattr(self, f"{protocol}_use_ssl_mutual")
        if not (mutual or getattr(self, f"{protocol}_use_ssl")):
            return None
        files = TlsFiles(
            cert=getattr(self, f"{protocol}_server_cert"),
            key=getattr(self, f"{protocol}_server_key"),
            root=getattr(self, f"{protocol}_root_cert") if mutual else "",
            alpn=_ALPN[protocol],
        )
        return Tls(files, server=True)

    def errors(self) -> list[str]:
        """Return the conflicts between settings, one line each."""
        conflicts = []
        for name in ("http_restricted_api", "grpc_restricted_protocol"):
            try:
                restricted_apis.gather(getattr(self, name))
            except ValueError as error:
                conflicts.append(f"--{name.replace('_', '-')}: {error}")
        if not (self.allow_http or self.allow_grpc or self.has_managed_port):
            conflicts.append(
                "--allow-http and --allow-grpc are both false: nothing would be served"
            )
        if self.allow_metrics and self.metrics_port < 0:
            conflicts.append(
                "--metrics-port: only the other services can do without; for no metrics"
                " say --allow-metrics=false"
            )
        conflicts += self.managed_errors(self._ports_beside_sagemaker())
        for protocol in _ALPN:
            conflicts += self._tls_errors(protocol)
        return conflicts + self.auth_errors() + self.mesh_errors()

    def _ports_beside_sagemaker(self) -> dict[str, int]:
        """Return the TCP ports that are served beside SageMaker's, keyed by their flags."""
        served = {
            "--http-port": (self.allow_http, self.http_at, self.http_port),
            "--grpc-port": (self.allow_grpc, self.grpc_at, self.grpc_port),
            "--metrics-port": (self.allow_metrics, self.metrics_at, self.metrics_port),
            "--vertex-ai-port": (self.allow_vertex_ai, "", self.vertex_ai_port),
        }
        return {
            name: port
            for name, (is_served, address, port) in served.items()
            if is_served and not address.startswith("unix:")
        }

    def _tls_errors(self, protocol: str) -> list[str]:
        mutual = getattr(self, f"{protocol}_use_ssl_mutual")
        if not (mutual or getattr(self, f"{protocol}_use_ssl")):
            return []
        needed = ["server-cert", "server-key", *(["root-cert"] if mutual else [])]
        flag_names = [f"{protocol}-{name}" for name in needed]
        missing = [name for name in flag_names if not getattr(self, name.replace("-", "_"))]
        if missing:
            return [f"--{name} is required with TLS" for name in missing]
        try:
            self.tls(protocol)
        except OSError as error:
            return [f"the TLS files of {protocol} cannot be used: {reason(error)}"]
        return []


def read(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> GatewaySettings:
    """Return the settings of this process; on errors, print all errors and exit with status 2."""
    return read_settings(
        GatewaySettings,
        sys.argv[1:] if argv is None else argv,
        read_environ() if environ is None else environ,
        PROGRAM,
    )
