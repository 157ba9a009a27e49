"""What `nereid serve` starts: one command line, checked as a whole and split among the services.

Its text is JSON, for nereid.cli.serve.planned_mesh; on errors, it prints them all and exits with 2.
A composition root: with nereid.cli.serve.joined the only module that may know several services.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import socket
import sys
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from nereid.cli.serve.inline_settings import InlineSettings
from nereid.cli.serve.likely_backends import likely_backends
from nereid.cli.serve.programs import EXECUTOR, GATEWAY, JOINED, SCHEDULER, WITH_EXECUTOR
from nereid.cli.serve.triton_flags import TritonFlags
from nereid.config import flags
from nereid.config.flags import declared_flags, flag
from nereid.config.mesh_access import MeshAccessSettings
from nereid.config.settings_reader import (
    exit_on_errors,
    read_shared_settings,
    secret_environ,
    settings_argv,
)
from nereid.mesh_auth.roles import Role
from nereid.observability.logging import LogSettings
from nereid.observability.trace_config import parse_trace_config
from nereid.rpc.net.address import host_and_port, unix_path
from nereid.services.cache.cache_config import CACHE_VARIABLES, LocalConfig
from nereid.services.cache.settings import CacheSettings
from nereid.services.executor.cores import usable_cores
from nereid.services.executor.settings import ExecutorSettings, prepare_environment
from nereid.services.gateway.settings import GatewaySettings
from nereid.services.scheduler.settings import Settings as SchedulerSettings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_PROGRAM = "nereid serve"
# Of executors and the cache.
_LAST_STAGE = 2
# Of executors that load and unload models all the time.
_FEW_ARENAS = 2
_Member = TypeVar("_Member", bound=MeshAccessSettings)

# What --help shows; --help-all shows all flags.
COMMON_FLAGS = frozenset(
    {
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


@dataclasses.dataclass(frozen=True)
class ServeSettings(InlineSettings):
    """Start a whole mesh on this machine: gateway, scheduler and executors as child processes."""

    TOPIC: ClassVar = flags.Topic.PROCESSES

    join: str = flag(
        "auto",
        "what shares a process: all: gateway, scheduler, cache and the executor, so that a crash in"
        " a model's native code ends the gateway as well; scheduler: all but the executors; none;"
        " auto: scheduler, or none with several --gateways or --schedulers",
        flags.choice("auto", "all", "scheduler", "none"),
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
        "how many executors to start; by default one for each GPU, or one on the CPU; with --join"
        " all there is one for all GPUs",
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Scheduler(SchedulerSettings):
    """Of the mesh: its own socket is a unix socket, which comes to those that are asked for."""

    scheduler_address: tuple[str, ...] = flag((), "", flags.address, repeated=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Cache(CacheSettings):
    """Of the mesh: on a unix socket, whatever is asked for."""

    cache_listen: str = flag("unix:cache.sock", "accepted and ignored: nereid serve chooses it")


_SETTINGS = (ServeSettings, GatewaySettings, ExecutorSettings, _Scheduler, _Cache)


@dataclasses.dataclass(frozen=True)
class _Mesh:
    serve: ServeSettings
    gateway: GatewaySettings
    scheduler: SchedulerSettings
    executor: ExecutorSettings
    cache: CacheSettings

    def of_role(self, settings: _Member, role: Role) -> _Member:
        """A service's settings with the token of its role in place of the mesh's."""
        token = self.scheduler.read_mesh_token()
        if token is None:
            return settings
        return dataclasses.replace(settings, mesh_token=token.role_token(role), mesh_token_file="")

    def schedulers(self, directory: str) -> list[SchedulerSettings]:
        """The schedulers to run, each of which listens at a unix socket in directory first."""
        scheduler, outside = self.scheduler, self.serve.scheduler_address
        count = self.serve.schedulers
        if count == 1:
            address = f"unix:{directory}/scheduler.sock"
            return [dataclasses.replace(scheduler, scheduler_address=(address, *outside))]
        own = [f"unix:{directory}/scheduler-{number}.sock" for number in range(count)]
        peers = ",".join(own)
        return [
            dataclasses.replace(
                scheduler,
                scheduler_address=(address, *outside[number : number + 1]),
                scheduler_name=f"scheduler-{number}",
                scheduler_peers=peers,
            )
            for number, address in enumerate(own)
        ]

    def children(self, directory: str) -> list[dict[str, Any]]:
        """The processes to run; the schedulers' unix sockets are in directory."""
        schedulers = self.schedulers(directory)
        address = ",".join(each.scheduler_address[0] for each in schedulers)
        gateway = dataclasses.replace(self.gateway, scheduler_address=address)
        joined, has_executor = self.serve.join != "none", self.serve.join == "all"
        # Metrics of the whole mesh have one port; in a shared process it is the gateway's flag.
        schedulers = [
            dataclasses.replace(
                each,
                # Beside the sockets: the next process of this mesh finds it, the next mesh does
                # not. Of all schedulers together.
                state_directory=self._state_directory(directory),
                metrics_port=gateway.metrics_port if joined else -1,
                metrics_address=gateway.metrics_address,
            )
            for each in schedulers
        ]
        has_cache = bool(self.cache.cache_config)
        if joined:
            (scheduler,) = schedulers
            # Of two flags of one name, the scheduler's counts: it comes last.
            argv = _merged(settings_argv(gateway), settings_argv(scheduler))
            argv = _merged(settings_argv(self.cache), argv)
            members: tuple[Any, ...] = (gateway, scheduler)
            if has_cache:
                members = (self.cache, *members)
            if has_executor:
                executor = self._executor(0, address)
                limit = f"--inline-execution-us={self.serve.inline_execution_us}"
                argv = [WITH_EXECUTOR, limit, *_merged(settings_argv(executor), argv)]
                members = (executor, *members)
            # Models may block the interpreter while they load.
            joint = _child(JOINED, argv, 0, members)
            children = [joint | {"may_block": has_executor}]
        else:
            gateway = self.of_role(gateway, Role.GATEWAY)
            children = [_gateway(gateway, number) for number in range(self.serve.gateways)]
            if has_cache:
                cache = dataclasses.replace(
                    self.of_role(self.cache, Role.SCHEDULER),
                    cache_listen=f"unix:{directory}/cache.sock",
                    metrics_port=-1,
                )
                schedulers = [
                    dataclasses.replace(each, cache_address=cache.cache_listen)
                    for each in schedulers
                ]
                children.append(_child("nereid.services.cache", settings_argv(cache), 2, (cache,)))
            children += [
                _child(SCHEDULER, settings_argv(each), 1, (each,), number)
                for number, each in enumerate(schedulers)
            ]
        if has_executor:
            return children
        gpus = _gpu_ids(self.executor)
        count = self.serve.executors
        if count is None:
            count = max(1, len(gpus))
        # Executors of one machine would each use all its cores.
        cores = self.executor.cpu_cores or (count > 1 and max(1, usable_cores() // count))
        for number in range(count):
            executor = self.of_role(self._executor(number, address), Role.EXECUTOR)
            executor = dataclasses.replace(executor, cpu_cores=int(cores))
            if gpus:
                executor = dataclasses.replace(executor, gpus=str(gpus[number % len(gpus)]))
            argv = settings_argv(executor)
            children.append(_child(EXECUTOR, argv, 2, (executor,), number) | {"may_block": True})
        return children

    def _state_directory(self, directory: str) -> str:
        if self.scheduler.state_name:
            return ""
        return self.scheduler.state_directory or f"{directory}/state"

    def _executor(self, number: int, address: str) -> ExecutorSettings:
        return dataclasses.replace(
            self.executor,
            name=f"executor-{number}",
            scheduler_address=address,
            preload_backend=self.executor.preload_backend or self._likely_backends(),
            malloc_arenas=self.executor.malloc_arenas or self._arenas(),
            metrics_port=-1,
            metrics_interval_ms=(
                self.executor.metrics_interval_ms if self.gateway.allow_metrics else 0
            ),
        )

    def _arenas(self) -> int:
        """Few where models come and go."""
        return _FEW_ARENAS if self.scheduler.model_memory_budget else 0

    def _likely_backends(self) -> tuple[str, ...]:
        scheduler = self.scheduler
        if scheduler.model_control_mode == "explicit" and not scheduler.load_model:
            return ()
        return likely_backends(scheduler.model_repository)

    def edges(self) -> dict[str, str]:
        """The addresses that clients use, by what is served there."""
        gateway = self.gateway
        edges = {
            "http": gateway.http_at if gateway.allow_http else None,
            "grpc": gateway.grpc_at if gateway.allow_grpc else None,
            "metrics": gateway.metrics_at if gateway.allow_metrics else None,
        }
        served = {name: address for name, address in edges.items() if address is not None}
        return served | gateway.managed_at

    def reused_edges(self) -> list[str]:
        """Those of the edges that other servers may listen at as well."""
        gateway = self.gateway
        reused = {"http": gateway.reuse_http_port, "grpc": gateway.reuse_grpc_port}
        return [name for name, is_reused in reused.items() if is_reused]

    def inherited_edges(self) -> list[str]:
        """Those of the edges that are bound for the gateways, and outlive them."""
        takes_sockets = self.gateway.grpc_engine == "nereid"
        return [name for name in self.edges() if takes_sockets or name != "grpc"]

    def gateways(self) -> list[str]:
        """The children that serve the edges, together if there are several."""
        if self.serve.join != "none":
            return [_name(JOINED, 0)]
        return [_name(GATEWAY, number) for number in range(self.serve.gateways)]


def main() -> None:
    """Print the plan for a runtime directory and flags, which are read as a JSON list."""
    directory, *argv = json.load(sys.stdin)
    sys.stdout.write(plan_text(directory, argv))


def plan_text(directory: str, argv: Sequence[str]) -> str:
    """The plan for a runtime directory and flags; prints help, or all errors, and exits."""
    prepare_environment()
    mesh = _read(argv)
    gateway, edges, reused = mesh.gateway, mesh.edges(), mesh.reused_edges()
    exit_on_errors(_port_errors(edges, reused), _PROGRAM)
    children = mesh.children(directory)
    log = {field.name: getattr(gateway, field.name) for field in dataclasses.fields(LogSettings)}
    limit_s = mesh.serve.exit_timeout_secs
    for each in children:
        # Executors are several, or have models to load, which takes longer than imports.
        each["standby"] = mesh.serve.standby and each["stage"] < _LAST_STAGE
    plan: dict[str, Any] = {"children": children, "exit_timeout_s": limit_s, "log": log}
    plan |= {"addresses": edges, "reused": reused, "inherited": mesh.inherited_edges()}
    plan |= {"gateways": mesh.gateways(), "group_directory": f"{directory}/gateways"}
    plan["secret_variables"] = _secret_variables()
    times, watchdog_s = gateway.recovery, mesh.serve.watchdog_timeout_secs
    plan["watchdog_timeout_s"] = times.watchdog_s if watchdog_s is None else watchdog_s
    plan |= {"unserved_s": times.unserved_s, "longest_pause_s": times.longest_restart_pause_s}
    plan["https"] = (
        "mutual" if gateway.http_use_ssl_mutual else "yes" if gateway.tls("http") else ""
    )
    return json.dumps(plan)


def _read(argv: Sequence[str]) -> _Mesh:
    serve, gateway, executor, scheduler, cache, triton = read_shared_settings(
        (*_SETTINGS, TritonFlags), argv, os.environ, _PROGRAM, common=COMMON_FLAGS
    )
    if triton.response_cache_byte_size is not None:
        if cache.cache_config:
            exit_on_errors(["--response-cache-byte-size: --cache-config says it all"], _PROGRAM)
        size = f"local,size={triton.response_cache_byte_size}"
        cache = dataclasses.replace(cache, cache_config=(size,))
    if serve.join == "all" and serve.executors not in (None, 1):
        text = "--executors: with --join all there is one, in the process of the gateway"
        exit_on_errors([text], _PROGRAM)
    if cache.cache_config and scheduler.cache_address is not None:
        exit_on_errors(["--cache-config and --cache-address exclude each other"], _PROGRAM)
    exit_on_errors(_scheduler_errors(serve, scheduler), _PROGRAM)
    if scheduler.state_name:
        exit_on_errors(_state_errors(scheduler, cache), _PROGRAM)
    if serve.gateways > 1:
        exit_on_errors(_group_errors(serve, gateway), _PROGRAM)
    if serve.gateways > 1 or serve.schedulers > 1:
        serve = dataclasses.replace(serve, join="none")
    if gateway.sagemaker_multi_model and not gateway.sagemaker_repository:
        first = scheduler.model_repository[0]
        gateway = dataclasses.replace(gateway, sagemaker_repository=first)
    ignored = triton.without_effect()
    if ignored:
        sys.stderr.write(f"{_PROGRAM}: taken from Triton, to no effect: {', '.join(ignored)}\n")
    return _Mesh(serve, gateway, scheduler, executor, cache)


def _state_errors(scheduler: SchedulerSettings, cache: CacheSettings) -> list[str]:
    """What state in Redis lacks."""
    errors = []
    in_memory = bool(cache.cache_config) and isinstance(cache.store_config(), LocalConfig)
    if in_memory or not (cache.cache_config or scheduler.cache_address):
        errors.append("--state-name: requires a cache in Redis (--cache-config=redis,host=...)")
    if not scheduler.mesh_secret("state"):
        errors.append("--state-name: requires the mesh's own token (--mesh-token-file)")
    return errors


def _group_errors(serve: ServeSettings, gateway: GatewaySettings) -> list[str]:
    """What several gateways cannot have."""
    errors = []
    if serve.join not in ("auto", "none"):
        errors.append(
            f"--join={serve.join}: one process has one gateway; --gateways={serve.gateways} needs"
            " --join=none, which is its default then"
        )
    if gateway.allow_grpc and gateway.grpc_engine != "nereid":
        errors.append(
            f"--grpc-engine={gateway.grpc_engine}: shares no port; --gateways={serve.gateways}"
            " needs --grpc-engine=nereid"
        )
    return errors


def _scheduler_errors(serve: ServeSettings, scheduler: SchedulerSettings) -> list[str]:
    """What this command cannot start."""
    errors = []
    if scheduler.scheduler_peers is not None or scheduler.scheduler_name:
        errors.append(
            "--scheduler-peers, --scheduler-name: --schedulers sets them; for schedulers on several"
            " machines start the services one by one"
        )
    count = serve.schedulers
    if count == 1:
        return errors
    if serve.join not in ("auto", "none"):
        errors.append(
            f"--join={serve.join}: one process has one scheduler; --schedulers={count} needs"
            " --join=none, which is its default then"
        )
    if scheduler.lazy_loading:
        errors.append(f"--lazy-loading: needs one scheduler; --schedulers={count}")
    if len(serve.scheduler_address) not in (0, count):
        errors.append(
            f"--scheduler-address: given {len(serve.scheduler_address)} times for"
            f" --schedulers={count}; each needs one of its own, or none"
        )
    return errors


def _gateway(settings: GatewaySettings, number: int) -> dict[str, Any]:
    """One of the gateways."""
    config = parse_trace_config(settings.trace_config)
    if number and config.to_file:
        # Two processes cannot write one file.
        file = f"triton,file={config.file}.gateway-{number}"
        settings = dataclasses.replace(settings, trace_config=(*settings.trace_config, file))
    return _child(GATEWAY, settings_argv(settings), 0, (settings,), number)


def _gpu_ids(settings: ExecutorSettings) -> list[int]:
    """The GPUs that executors of this machine have to offer."""
    if importlib.util.find_spec("pynvml") is None:
        return []
    # They load NumPy and more, which only a machine with GPUs needs here.
    from nereid.services.executor.backends.registry import BackendRegistry  # noqa: PLC0415
    from nereid.services.executor.service import offered_gpus  # noqa: PLC0415

    return [gpu.id for gpu in offered_gpus(settings, BackendRegistry())]


def _child(
    module: str, argv: list[str], stage: int, members: Sequence[Any], number: int = 0
) -> dict[str, Any]:
    """members: the settings of the services in it, whose secrets it gets."""
    secrets = {name: text for each in members for name, text in secret_environ(each).items()}
    if any(isinstance(each, CacheSettings) for each in members):
        secrets |= {name: os.environ[name] for name in CACHE_VARIABLES if name in os.environ}
    return {
        "name": _name(module, number),
        "argv": ["-m", module, *argv],
        "stage": stage,
        "secrets": secrets,
        "may_block": False,
        "standby": False,
    }


def _name(module: str, number: int) -> str:
    return f"{module} {number}"


def _secret_variables() -> list[str]:
    """All variables that may hold a secret: each child gets its own in another way."""
    secret = [each.variable for each in declared_flags(*_SETTINGS) if each.option.secret]
    return [*secret, *CACHE_VARIABLES]


def _merged(first: list[str], last: list[str]) -> list[str]:
    """Both, without the flags in first that last has as well."""
    names = {each.partition("=")[0] for each in last}
    return [each for each in first if each.partition("=")[0] not in names] + last


def _port_errors(edges: Mapping[str, str], reused: Collection[str]) -> list[str]:
    addresses = [*edges.values()]
    twice = {each for each in addresses if addresses.count(each) > 1 and not each.endswith(":0")}
    if twice:
        return [f"cannot listen on {each} twice" for each in sorted(twice)]
    return [error for name, at in edges.items() for error in _port_error(at, reuse=name in reused)]


def _port_error(address: str, *, reuse: bool) -> list[str]:
    if unix_path(address) is not None:
        return []
    host, port = host_and_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse)
        try:
            probe.bind((host, port))
        except OSError as error:
            return [f"cannot listen on {address}: {error.strerror}"]
    return []


if __name__ == "__main__":
    main()
