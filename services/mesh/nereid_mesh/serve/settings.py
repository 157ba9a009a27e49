"""Flags of `nereid serve` itself. The services' flags are added to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nereid.config import flags
from nereid.config.flags import flag

# --help-all shows all flags.
COMMON_FLAGS = frozenset(
    {
        "config",
        "print_config",
        "model_repository",
        "model_control_mode",
        "load_model",
        "strict_readiness",
        "backend_config",
        "http_port",
        "grpc_port",
        "metrics_port",
        "gateways",
        "schedulers",
        "executors",
        "gpus",
        "cache_config",
        "max_queue_size",
        "exit_timeout_secs",
        "allow_client_shm",
        "http_max_input_size",
        "trace_config",
        "log_verbose",
        "log_format",
        "log_file",
    }
)


def _join(text: str) -> str:
    if text == "all":
        raise ValueError("executors have processes of their own; use scheduler, the default")
    name: str = flags.choice("auto", "scheduler", "none")(text)
    return name


@dataclass(frozen=True)
class ServeSettings:
    """Start a whole mesh on this machine: gateway, scheduler and executors as child processes."""

    TOPIC: ClassVar = flags.Topic.PROCESSES

    config: str = flag(
        "",
        "a TOML file of flags: http-port = 8000, and lists for repeated ones; the command line and"
        " the environment replace its values",
    )
    print_config: bool = flag(
        False,
        "print the settings as such a file and exit",
        flags.boolean,
        bare="true",
    )
    join: str = flag(
        "auto",
        "what shares a process: scheduler: gateway, scheduler and cache; none: nothing; auto:"
        " scheduler, or none with several --gateways or --schedulers",
        _join,
    )
    gateways: int = flag(
        1,
        "how many gateways serve the ports together, each with a process and an event loop; with"
        " more than one, --join is none",
        flags.integer(1, 64),
    )
    schedulers: int = flag(
        1,
        "how many schedulers share the models out among themselves, each with a process and an"
        " event loop; the others take over the models of one that ends; with more than one, --join"
        " is none",
        flags.integer(1, 16),
    )
    executors: int | None = flag(
        None,
        "how many executors to start; by default one for each GPU, or one on the CPU",
        flags.integer(0, 64),
    )
    exit_timeout_secs: float = flag(
        30.0, "how long pending requests may take to finish after SIGTERM", flags.seconds
    )
    watchdog_timeout_secs: float | None = flag(
        None,
        "when a process without a heartbeat is killed and started again, by default after the"
        " others have given it up (--mesh-silence-secs); one that has an executor and is not"
        " stopped has 30 times as long, for models that load; 0: never",
        flags.seconds,
    )
    standby: bool = flag(
        False,
        "keep a second process for each gateway and scheduler, which has imported everything and"
        " takes over when the first one ends: within a fraction of a second, for 35 MB of memory",
        flags.boolean,
        bare="true",
    )
    scheduler_address: tuple[str, ...] = flag(
        (),
        "where the scheduler listens for gateways and executors of other machines as well,"
        " host:port or unix:/path; may be given several times; with several --schedulers, once for"
        " each",
        flags.address,
        repeated=True,
    )
