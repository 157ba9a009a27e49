"""The gateway's flags and environment variables; nothing else in the gateway reads either."""

from __future__ import annotations

import os
import ssl
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid import flags
from nereid.flags import flag
from nereid.telemetry import LogSettings
from nereid.tracing import TraceSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM: Final = "services.gateway"
_MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(TraceSettings, LogSettings):
    """Serves KServe v2 over HTTP and gRPC in front of a scheduler."""

    scheduler_address: str = flag(
        "127.0.0.1:8003", "the scheduler: host:port or unix:/path", flags.address
    )
    server_id: str = flag("triton", "the name that server metadata tells", aliases=("--id",))
    exit_timeout_secs: float = flag(
        30.0, "how long an ending server waits for what is under way", flags.seconds
    )

    allow_http: bool = flag(True, "serve HTTP", flags.boolean)
    http_address: str = flag("0.0.0.0", "the interface of the HTTP port")
    http_port: int = flag(8000, "the HTTP port; 0 takes a free one", flags.port)
    reuse_http_port: bool = flag(False, "let other processes share the HTTP port", flags.boolean)
    http_max_input_size: int = flag(
        64 * _MIB, "largest body of an HTTP request, in bytes, also when unpacked", flags.integer(1)
    )
    http_max_header_size: int = flag(
        65536, "largest headers of an HTTP request, in bytes", flags.integer(1024)
    )
    http_max_pipelined: int = flag(
        32, "requests under way at once on one HTTP connection", flags.integer(1)
    )
    http_request_timeout_secs: float = flag(
        30.0, "how long an HTTP request may take to arrive", flags.seconds
    )
    http_idle_timeout_secs: float = flag(
        600.0, "when a silent HTTP connection is closed", flags.seconds
    )

    allow_grpc: bool = flag(True, "serve gRPC", flags.boolean)
    grpc_address: str = flag("0.0.0.0", "the interface of the gRPC port")
    grpc_port: int = flag(8001, "the gRPC port; 0 takes a free one", flags.port)
    grpc_engine: str = flag(
        "nereid", "what speaks gRPC on the edge: nereid or grpcio", flags.choice("nereid", "grpcio")
    )
    grpc_keepalive_time: int = flag(
        7200000, "milliseconds of silence before a gRPC client is pinged", flags.integer(1)
    )
    grpc_keepalive_timeout: int = flag(
        20000, "milliseconds that a gRPC client has to answer a ping", flags.integer(1)
    )
    grpc_max_connection_age: int = flag(
        0, "milliseconds after which a gRPC connection is ended; 0: never", flags.integer(0)
    )
    grpc_use_ssl: bool = flag(False, "serve gRPC over TLS", flags.boolean)
    grpc_use_ssl_mutual: bool = flag(
        False, "ask gRPC clients for their certificate; implies --grpc-use-ssl", flags.boolean
    )
    grpc_server_cert: str = flag("", "PEM file of the gRPC server's certificate chain")
    grpc_server_key: str = flag("", "PEM file of the gRPC server's private key")
    grpc_root_cert: str = flag("", "PEM file of the certificates that sign clients'")

    allow_metrics: bool = flag(True, "serve metrics", flags.boolean, bare="true")
    metrics_address: str = flag("", "the interface of the metrics port; default: HTTP's")
    metrics_port: int = flag(8002, "the metrics port; 0 takes a free one", flags.port)
    allow_cpu_metrics: bool = flag(
        True, "tell of the machines' CPUs and memory", flags.boolean, bare="true"
    )
    allow_gpu_metrics: bool = flag(True, "tell of the GPUs", flags.boolean, bare="true")

    max_pending_requests: int = flag(
        65536, "requests under way at once before more are refused", flags.integer(1)
    )
    reconnect_timeout_secs: float = flag(
        30.0, "how long requests wait for a scheduler that went away", flags.seconds
    )
    control_timeout_secs: float = flag(
        30.0, "how long the scheduler may take for a control call", flags.seconds
    )

    @property
    def uses_tls(self) -> bool:
        """Whether the gRPC port speaks TLS."""
        return self.grpc_use_ssl or self.grpc_use_ssl_mutual

    def faults(self) -> list[str]:
        """What no single setting can tell, a line each."""
        found = []
        if not self.allow_http and not self.allow_grpc:
            found.append("--allow-http and --allow-grpc are both false: nothing would be served")
        if self.allow_metrics and self.metrics_port < 0:
            found.append(
                "--metrics-port: only the other services can do without; for no metrics"
                " say --allow-metrics=false"
            )
        needed = ["grpc_server_cert", "grpc_server_key"] if self.uses_tls else []
        if self.grpc_use_ssl_mutual:
            needed.append("grpc_root_cert")
        missing = [name for name in needed if not getattr(self, name)]
        found += [f"--{name.replace('_', '-')} is required with TLS" for name in missing]
        if needed and not missing:
            try:
                tls_context(self)
            except OSError as error:
                found.append(f"the TLS files cannot be used: {error}")
        return found


def read(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> GatewaySettings:
    """The settings of this process; on faults, tell them all and exit with 2."""
    return flags.read(
        GatewaySettings,
        sys.argv[1:] if argv is None else argv,
        os.environ if environ is None else environ,
        PROGRAM,
    )


def tls_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    """The TLS side of the gRPC port on Nereid's own engine; None where it speaks clear text."""
    if not settings.uses_tls:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(settings.grpc_server_cert, settings.grpc_server_key)
    if settings.grpc_use_ssl_mutual:
        context.load_verify_locations(settings.grpc_root_cert)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
