"""Planning of a mesh: one command line is checked as a whole and split among the services."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nereid.config import flags
from nereid.config.flags import declared_flags, flag
from nereid.config.settings_reader import (
    exit_on_errors,
    read_shared_settings,
    secret_environ,
    settings_argv,
    settings_parser,
)
from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.settings import MeshAccessSettings
from nereid.observability.logging import LogSettings
from nereid.observability.trace_config import parse_trace_config
from nereid.rpc.net.address import unix_path
from nereid.rpc.net.binding import check_tcp
from nereid_cache.cache_config import CACHE_VARIABLES, LocalConfig
from nereid_cache.settings import CacheSettings
from nereid_executor.core.cores import usable_cores
from nereid_executor.settings import ExecutorSettings, prepare_environment
from nereid_gateway.settings import GatewaySettings
from nereid_mesh.serve.likely_backends import likely_backends
from nereid_mesh.serve.plan import ChildSpec, Edge, Plan, SupervisionRules
from nereid_mesh.serve.programs import (
    CACHE,
    EXECUTOR,
    GATEWAY,
    JOINED,
    SCHEDULER,
    module_argv,
)
from nereid_mesh.serve.settings import COMMON_FLAGS, ServeSettings
from nereid_mesh.serve.triton_flags import TritonFlags
from nereid_scheduler.settings import Settings as SchedulerSettings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

_PROGRAM: Final = "nereid serve"
# The port is taken, or this user may not use it.
_OTHER_PORT_HELPS: Final = frozenset((errno.EADDRINUSE, errno.EACCES))
# A lower stage is drained before a higher one.
_GATEWAY_STAGE: Final = 0
_SCHEDULER_STAGE: Final = 1
_LAST_STAGE: Final = 2
# By then a mesh has started even on a busy machine, so standbys do not delay it.
_STANDBY_AFTER_S: Final = 5.0
# malloc arenas of executors that load and unload models all the time.
_FEW_ARENAS: Final = 2
_Member = TypeVar("_Member", bound=MeshAccessSettings)


@dataclass(frozen=True, kw_only=True)
class _Scheduler(SchedulerSettings):
    """Settings of one of the mesh's schedulers: a unix socket, and addresses given by the user."""

    scheduler_address: tuple[str, ...] = flag((), "", flags.address, repeated=True)


@dataclass(frozen=True, kw_only=True)
class _Cache(CacheSettings):
    """Settings of the mesh's cache, which listens on a unix socket whatever the user gives."""

    cache_listen: str = flag("unix:cache.sock", "accepted and ignored: nereid serve chooses it")


_SETTINGS: Final = (ServeSettings, GatewaySettings, ExecutorSettings, _Scheduler, _Cache)


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags, for shell completion."""
    return settings_parser((*_SETTINGS, TritonFlags), _PROGRAM)


def plan_mesh(directory: str, argv: Sequence[str]) -> Plan:
    """Return the plan for a runtime directory and flags, or print help or all errors and exit."""
    prepare_environment()
    mesh = _Mesh(directory, *_read(argv))
    serve, gateway, edges = mesh.serve, mesh.gateway, mesh.edges()
    exit_on_errors(_port_errors(edges), _PROGRAM)
    times, watchdog_s = gateway.recovery, serve.watchdog_timeout_secs
    log = {field.name: getattr(gateway, field.name) for field in dataclasses.fields(LogSettings)}
    return Plan(
        children=tuple(mesh.children()),
        supervision=SupervisionRules(
            exit_timeout_s=serve.exit_timeout_secs,
            secret_variables=_secret_variables(),
            watchdog_timeout_s=times.watchdog_s if watchdog_s is None else watchdog_s,
            longest_pause_s=times.longest_restart_pause_s,
        ),
        gateways=mesh.gateways(),
        group_directory=f"{directory}/gateways",
        edges=edges,
        unserved_s=times.unserved_s,
        https="mutual" if gateway.http_use_ssl_mutual else "yes" if gateway.tls("http") else "",
        console=gateway.console,
        openai=gateway.openai_api,
        needs_key="inference" in gateway.apis_with_credentials(),
        scheduler=mesh.scheduler_address,
        credentials=gateway.mesh_credentials(Role.GATEWAY),
        log=LogSettings(**log),
    )


@dataclass(frozen=True)
class _Mesh:
    """The mesh that the flags ask for. `directory` holds the unix sockets between the services."""

    directory: str
    serve: ServeSettings
    gateway: GatewaySettings
    executor: ExecutorSettings
    scheduler: SchedulerSettings
    cache: CacheSettings

    def children(self) -> list[ChildSpec]:
        """Return the specs of the processes to run."""
        schedulers = self._schedulers()
        address = ",".join(scheduler.scheduler_address[0] for scheduler in schedulers)
        gateway = replace(self.gateway, scheduler_address=address)
        if self.serve.join == "none":
            children = self._separate(gateway, schedulers)
        else:
            children = [self._joined(gateway, schedulers[0])]
        return children + self._executors(address)

    @property
    def _cache_address(self) -> str:
        return f"unix:{self.directory}/cache.sock"

    def gateways(self) -> tuple[str, ...]:
        """Return the names of the children that together serve the edges."""
        if self.serve.join != "none":
            return (_name(JOINED, 0),)
        return tuple(_name(GATEWAY, number) for number in range(self.serve.gateways))

    def edges(self) -> dict[str, Edge]:
        """Return the addresses that clients use, by the name of what is served there."""
        gateway = self.gateway
        edges = {}
        # The engine grpcio binds its port itself.
        is_inherited = gateway.grpc_engine == "nereid"
        if gateway.allow_http:
            edges["http"] = Edge(gateway.http_at, gateway.reuse_http_port, is_inherited=True)
        if gateway.allow_grpc:
            edges["grpc"] = Edge(gateway.grpc_at, gateway.reuse_grpc_port, is_inherited)
        if gateway.allow_metrics:
            edges["metrics"] = Edge(gateway.metrics_at, is_reused=False, is_inherited=True)
        for name, address in gateway.managed_at.items():
            edges[name] = Edge(address, is_reused=False, is_inherited=True)
        return edges

    def _joined(self, gateway: GatewaySettings, scheduler: SchedulerSettings) -> ChildSpec:
        # The gateway's flag gives the one port for metrics of the whole mesh.
        scheduler = replace(
            scheduler, metrics_port=gateway.metrics_port, metrics_address=gateway.metrics_address
        )
        # If a flag occurs twice, the last one counts.
        argv = _merged(settings_argv(gateway), settings_argv(scheduler))
        cache = replace(self.cache, cache_listen=self._cache_address)
        argv = _merged(settings_argv(cache), argv)
        members: list[Any] = [gateway, scheduler]
        if cache.cache_config:
            members.insert(0, cache)
        return self._child(JOINED, argv, _GATEWAY_STAGE, members)

    def _separate(
        self, gateway: GatewaySettings, schedulers: list[SchedulerSettings]
    ) -> list[ChildSpec]:
        gateway = self._of_role(gateway, Role.GATEWAY)
        children = [self._gateway(gateway, number) for number in range(self.serve.gateways)]
        if self.cache.cache_config:
            cache = replace(
                self._of_role(self.cache, Role.SCHEDULER),
                cache_listen=self._cache_address,
                metrics_port=-1,
            )
            children.append(self._child(CACHE, settings_argv(cache), _LAST_STAGE, [cache]))
        for number, each in enumerate(schedulers):
            argv = settings_argv(each)
            children.append(self._child(SCHEDULER, argv, _SCHEDULER_STAGE, [each], number))
        return children

    def _executors(self, address: str) -> list[ChildSpec]:
        gpus = _gpu_ids(self.executor)
        count = self.serve.executors
        if count is None:
            count = max(1, len(gpus))
        # Otherwise each of several executors would use all cores.
        cores = self.executor.cpu_cores or (count > 1 and max(1, usable_cores() // count))
        children = []
        for number in range(count):
            executor = self._of_role(self._executor(number, address), Role.EXECUTOR)
            executor = replace(executor, cpu_cores=int(cores))
            if gpus:
                executor = replace(executor, gpus=str(gpus[number % len(gpus)]))
            argv = settings_argv(executor)
            child = self._child(EXECUTOR, argv, _LAST_STAGE, [executor], number)
            # Models may block the interpreter while they load.
            children.append(replace(child, may_block=True))
        return children

    @property
    def scheduler_address(self) -> str:
        """Unix socket of the first scheduler."""
        return self._schedulers()[0].scheduler_address[0]

    def _schedulers(self) -> list[SchedulerSettings]:
        outside, count = self.serve.scheduler_address, self.serve.schedulers
        scheduler = replace(
            self.scheduler, state_directory=self._state_directory(), metrics_port=-1
        )
        if self.cache.cache_config:
            scheduler = replace(scheduler, cache_address=self._cache_address)
        if count == 1:
            address = f"unix:{self.directory}/scheduler.sock"
            return [replace(scheduler, scheduler_address=(address, *outside))]
        own = [f"unix:{self.directory}/scheduler-{number}.sock" for number in range(count)]
        return [
            replace(
                scheduler,
                scheduler_address=(address, *outside[number : number + 1]),
                scheduler_name=f"scheduler-{number}",
                scheduler_peers=",".join(own),
            )
            for number, address in enumerate(own)
        ]

    def _state_directory(self) -> str:
        """Return the state's directory, beside the sockets unless a flag names one."""
        if self.scheduler.state_name:
            return ""
        return self.scheduler.state_directory or f"{self.directory}/state"

    def _executor(self, number: int, address: str) -> ExecutorSettings:
        executor = self.executor
        # Few arenas return more memory to the system.
        arenas = _FEW_ARENAS if self.scheduler.model_memory_budget else 0
        return replace(
            executor,
            name=f"executor-{number}",
            scheduler_address=address,
            preload_backend=executor.preload_backend or self._likely_backends(),
            malloc_arenas=executor.malloc_arenas or arenas,
            metrics_port=-1,
            metrics_interval_ms=executor.metrics_interval_ms if self.gateway.allow_metrics else 0,
        )

    def _likely_backends(self) -> tuple[str, ...]:
        scheduler = self.scheduler
        if scheduler.model_control_mode == "explicit" and not scheduler.load_model:
            return ()
        return likely_backends(scheduler.model_repository)

    def _gateway(self, settings: GatewaySettings, number: int) -> ChildSpec:
        config = parse_trace_config(settings.trace_config)
        if number and config.to_file:
            # Two processes cannot write to the same file.
            file = f"triton,file={config.file}.gateway-{number}"
            settings = replace(settings, trace_config=(*settings.trace_config, file))
        return self._child(GATEWAY, settings_argv(settings), _GATEWAY_STAGE, [settings], number)

    def _of_role(self, settings: _Member, role: Role) -> _Member:
        """Return a service's settings with a role's token in place of the mesh's own token."""
        token = self.scheduler.read_mesh_token()
        if token is None:
            return settings
        return replace(settings, mesh_token=token.role_token(role), mesh_token_file="")

    def _child(
        self, module: str, argv: list[str], stage: int, members: Sequence[Any], number: int = 0
    ) -> ChildSpec:
        secrets = {
            name: text for member in members for name, text in secret_environ(member).items()
        }
        if any(isinstance(member, CacheSettings) for member in members):
            secrets |= {name: os.environ[name] for name in CACHE_VARIABLES if name in os.environ}
        # Executors have no standby: there are several, or loading models takes longer than imports.
        has_standby = self.serve.standby and stage < _LAST_STAGE
        return ChildSpec(
            _name(module, number),
            module_argv(module, *argv),
            stage,
            secrets,
            standby_after_s=_STANDBY_AFTER_S if has_standby else None,
        )


def _read(
    argv: Sequence[str],
) -> tuple[ServeSettings, GatewaySettings, ExecutorSettings, SchedulerSettings, CacheSettings]:
    serve, gateway, executor, scheduler, cache, triton = read_shared_settings(
        (*_SETTINGS, TritonFlags), argv, os.environ, _PROGRAM, common=COMMON_FLAGS
    )
    if triton.response_cache_byte_size is not None:
        if cache.cache_config:
            exit_on_errors(["--response-cache-byte-size: --cache-config says it all"], _PROGRAM)
        size = f"local,size={triton.response_cache_byte_size}"
        cache = replace(cache, cache_config=(size,))
    if cache.cache_config and scheduler.cache_address is not None:
        exit_on_errors(["--cache-config and --cache-address exclude each other"], _PROGRAM)
    exit_on_errors(_scheduler_errors(serve, scheduler), _PROGRAM)
    if scheduler.state_name:
        exit_on_errors(_state_errors(scheduler, cache), _PROGRAM)
    if serve.gateways > 1:
        exit_on_errors(_group_errors(serve, gateway), _PROGRAM)
    if serve.gateways > 1 or serve.schedulers > 1:
        serve = replace(serve, join="none")
    if gateway.sagemaker_multi_model and not gateway.sagemaker_repository:
        first = scheduler.model_repository[0]
        gateway = replace(gateway, sagemaker_repository=first)
    ignored = triton.without_effect()
    if ignored:
        sys.stderr.write(f"{_PROGRAM}: taken from Triton, to no effect: {', '.join(ignored)}\n")
    # Children keep the token of the start: those that get a role's cannot follow its file.
    return (
        serve,
        gateway.with_present_token(),
        executor.with_present_token(),
        scheduler.with_present_token(),
        cache.with_present_token(),
    )


def _state_errors(scheduler: SchedulerSettings, cache: CacheSettings) -> list[str]:
    errors = []
    in_memory = bool(cache.cache_config) and isinstance(cache.store_config(), LocalConfig)
    if in_memory or not (cache.cache_config or scheduler.cache_address):
        errors.append("--state-name: requires a cache in Redis (--cache-config=redis,host=...)")
    if not scheduler.mesh_secret("state"):
        errors.append("--state-name: requires the mesh's own token (--mesh-token-file)")
    return errors


def _group_errors(serve: ServeSettings, gateway: GatewaySettings) -> list[str]:
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


def _gpu_ids(settings: ExecutorSettings) -> list[int]:
    if importlib.util.find_spec("pynvml") is None:
        return []
    # These imports load NumPy and more, which only a machine with GPUs needs.
    from nereid_executor.backends.registry import BackendRegistry  # noqa: PLC0415
    from nereid_executor.service import offered_gpus  # noqa: PLC0415

    return [gpu.id for gpu in offered_gpus(settings, BackendRegistry())]


def _name(module: str, number: int) -> str:
    return f"{module} {number}"


def _secret_variables() -> frozenset[str]:
    """Return the variables that may hold a secret. Each child gets its own in another way."""
    secret = (
        declared.variable for declared in declared_flags(*_SETTINGS) if declared.option.secret
    )
    return frozenset((*secret, *CACHE_VARIABLES))


def _merged(first: list[str], last: list[str]) -> list[str]:
    """Join two lists of flags; drop flags of `first` that are in `last` too."""
    names = {text.partition("=")[0] for text in last}
    return [text for text in first if text.partition("=")[0] not in names] + last


def _port_errors(edges: Mapping[str, Edge]) -> list[str]:
    addresses = [edge.address for edge in edges.values()]
    twice = {
        address
        for address in addresses
        if addresses.count(address) > 1 and not address.endswith(":0")
    }
    if twice:
        return [f"cannot listen on {address} twice" for address in sorted(twice)]
    errors = []
    for name, edge in edges.items():
        try:
            if unix_path(edge.address) is None:
                check_tcp(edge.address, reuse_port=edge.is_reused)
        except OSError as error:
            reason = f"cannot listen on {edge.address}: {error.strerror}"
            if error.errno in _OTHER_PORT_HELPS:
                reason += f"; --{name}-port=N takes another (0: a free one)"
            errors.append(reason)
    return errors
