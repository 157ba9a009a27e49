"""Settings of the scheduler. Only this module reads the scheduler's flags and environment."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from nereid.config.flags import (
    PlatformVariable,
    Topic,
    address,
    boolean,
    choice,
    flag,
    integer,
    own_port,
    seconds,
)
from nereid.config.recovery import RecoverySettings
from nereid.core.files.file_watch import FileError
from nereid.core.variables import Variables
from nereid.mesh_auth.settings import MeshAccessSettings
from nereid.object_store.file_systems import missing_package
from nereid.object_store.plans.urls import is_store_url, parse_store_url
from nereid.observability.logging import LogSettings
from nereid.observability.trace_config import TraceSettings
from nereid.rpc.net.address import host_and_port, unix_path
from nereid.rpc.net.scheduler_addresses import address_list
from nereid.shm.settings import SegmentPoolSettings
from nereid.timeline.settings import TimelineSettings
from nereid_scheduler.control.sources.traffic_file import read_traffic_file
from nereid_scheduler.control.state.files import directory_error
from nereid_scheduler.core.measurements.latencies import setting
from nereid_scheduler.core.memory.budgets import Budget
from nereid_scheduler.core.models.allowed_backends import ALL_BACKENDS, AllowedBackends
from nereid_scheduler.core.resources import ResourceLimit

_CONTROL_MODES: Final = ("none", "poll", "explicit")
_ALL_INTERFACES: Final = ("", "0.0.0.0", "::")
# Value of --rate-limit that makes instances wait for resources.
BY_EXECUTIONS: Final = "execution_count"


def _backend_setting(text: str) -> str:
    """Check 'backend,key=value', or 'key=value' for all backends."""
    backend_and_key, equals, _ = text.partition("=")
    if not (equals and backend_and_key.rpartition(",")[2].strip()):
        raise ValueError("expected backend,key=value or key=value")
    return text


def _rate_limit(text: str) -> str:
    if text.lower() not in ("off", BY_EXECUTIONS):
        raise ValueError("invalid argument for --rate-limit")
    return text.lower()


def _store_url_error(text: str) -> str:
    """Return why a repository in an object store cannot be read; empty if no fault is known."""
    try:
        return missing_package(parse_store_url(text))
    except ValueError as error:
        return str(error)


def _state_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{0,64}", text):
        raise ValueError("expected at most 64 letters, digits, '.', '_' and '-'")
    return text


def _profile_name(text: str) -> str:
    if not re.fullmatch(r"[\w-]*", text, re.ASCII):
        raise ValueError("expected letters, digits, _ and -")
    return text


def _plain_name(text: str) -> str:
    """Check that a text is a file's name, not a path."""
    if "/" in text or "\0" in text:
        raise ValueError("expected a name without slashes")
    return text


@dataclass(frozen=True, kw_only=True)
class RepositorySettings:
    """Flags for model repositories, and for the backends that load models."""

    TOPIC: ClassVar = Topic.MODELS

    model_repository: tuple[str, ...] = flag(
        ..., "a directory of models, or s3://bucket/path, s3://https://host:port/bucket/path,"
        " gs://bucket/path, as://account/container/path; may be given several times",
        # Triton takes the beginning of any flag, and this one is common.
        aliases=("--model-store", "--model-repo"), repeated=True,
        platform=PlatformVariable("AIP_STORAGE_URI"),
    )  # fmt: skip
    backend_config: tuple[str, ...] = flag(
        (), "backend,key=value, or key=value for all of them", _backend_setting, repeated=True
    )


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """Flags for queues, and for requests that run again."""

    TOPIC: ClassVar = Topic.QUEUES

    max_retries: int = flag(
        2, "how often a request runs again after the executor that had it was lost", integer(0)
    )
    no_executor_timeout_secs: float | None = flag(
        None,
        "how long requests wait while no executor has their model; by default as long as a restart"
        " may take (--mesh-restart-secs)",
        seconds,
    )
    max_queue_size: int = flag(
        16384, "how many requests of one model may wait; 0: any number", integer(0)
    )
    client_sequence_percent: int = flag(
        100, "how many of a model's slots the open sequences of one client may have, in percent; a"
        " client is a principal of --auth-config or, with --hardened, an address", integer(1, 100),
        hardened="50",
    )  # fmt: skip
    waiting_batches: int = flag(
        1, "how many batches may wait at an instance that executes another, 0 or 1, where a batch"
        " is executed about as fast as it is sent there", integer(0, 1),
    )  # fmt: skip
    admission: str = flag(
        "none", "codel: a model under overload refuses requests that would queue for longer than"
        " --admission-target-ms, those of less urgent priority levels first; none: only a full"
        " queue refuses any", choice("none", "codel"),
    )  # fmt: skip
    admission_target_ms: int = flag(
        20, "how long requests may queue with --admission=codel; a model's parameter"
        " admission_target_ms says otherwise, with or without that; 0 there: for any time",
        integer(1),
    )  # fmt: skip
    admission_interval_ms: int = flag(
        100, "how long a queue may be longer than that before any request is refused", integer(1)
    )
    rate_limit: str = flag(
        "off", "execution_count: instances execute when the resources of their rate_limiter are"
        " free, in the order of their priorities; off: at once", _rate_limit,
    )  # fmt: skip
    rate_limit_resource: tuple[ResourceLimit, ...] = flag(
        (), "name:count or name:count:device, how much there is of a resource, on every device or"
        " one, with --rate-limit=execution_count; by default what the neediest instance needs; if"
        " any is given, there is nothing of the others", ResourceLimit.parse, repeated=True,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CacheClientSettings:
    """Flags of the response cache's client."""

    TOPIC: ClassVar = Topic.CACHE

    cache_address: str | None = flag(
        None, "the response cache, host:port or unix:/path; by default there is none", address
    )
    cache_timeout_ms: int = flag(
        5, "how long a request may wait for the cache before it is queued", integer(0)
    )


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """Flags of metrics."""

    TOPIC: ClassVar = Topic.METRICS

    metrics_config: tuple[str, ...] = flag(
        (),
        "histogram_latencies=true, summary_latencies=true, summary_quantiles=<quantile>,... or"
        " counter_latencies=false; may be given several times",
        setting,
        repeated=True,
    )
    metrics_port: int = flag(-1, "a port for the scheduler's own /metrics; -1: none", own_port)
    metrics_address: str = flag(
        "0.0.0.0", "the interface of the metrics port", hardened="127.0.0.1"
    )


@dataclass(frozen=True, kw_only=True)
class ModelControlSettings:
    """Flags that choose which models are loaded, when and how."""

    TOPIC: ClassVar = Topic.MODELS

    model_control_mode: str = flag(
        "none", "none: all models are loaded at the start; poll: and again whenever their files"
        " change; explicit: those of --load-model, and what clients load and unload",
        choice(*_CONTROL_MODES),
    )  # fmt: skip
    load_model: tuple[str, ...] = flag(
        (), "a model to load at the start, with --model-control-mode=explicit; may be given"
        " several times; * alone: all", repeated=True,
    )  # fmt: skip
    state_directory: str = flag(
        "", "a directory, for the scheduler's user alone, that keeps what clients have loaded,"
        " unloaded and set, for the scheduler's next start; with nereid serve by default one that"
        " ends with it, else none",
    )  # fmt: skip
    state_name: str = flag(
        "", "keep that in the Redis of the response cache instead, under this name, which the"
        " schedulers of one mesh share and no other mesh has; requires a mesh token", _state_name,
    )  # fmt: skip
    traffic_file: str = flag(
        "", "a JSON file with models' traffic and shadows, which is watched; calls cannot set what"
        " it has",
    )  # fmt: skip
    lazy_loading: bool = flag(
        False, "whether models are loaded when their first requests come, which wait, but for those"
        " of --load-model, and those whose parameter lazy_loading is false", boolean, bare="true",
    )  # fmt: skip
    model_memory_budget: tuple[Budget, ...] = flag(
        (), "how much memory the models of each executor may take: 4GiB (on every device),"
        " cpu=4GiB, gpu=20GiB (on each) or gpu:1=8GiB; of models that are loaded lazily, the least"
        " popular ones are unloaded for others", Budget.parse, repeated=True,
    )  # fmt: skip
    model_popularity_half_life: int = flag(
        4, "after how many requests, for each lazily loaded model in memory, a request counts for"
        " half as much in a model's popularity; 0: the least recently used models are unloaded",
        integer(0),
    )  # fmt: skip
    repository_poll_secs: float = flag(
        15.0, "how often to look for changes, with --model-control-mode=poll; 0: never", seconds
    )
    backends: AllowedBackends = flag(  # noqa: RUF009 - as every flag
        ALL_BACKENDS, "the backends that models may use, such as onnxruntime,openvino, or -python"
        " for all but that; default: all", AllowedBackends.parse, hardened="-python",
    )  # fmt: skip
    allow_model_files: bool = flag(
        True, "whether clients may send a model's files with the request to load it (file:...)",
        boolean, bare="true", hardened="false",
    )  # fmt: skip
    model_load_retry_count: int = flag(
        0, "how often to try again to load a model that failed to load", integer(0)
    )
    model_config_name: str = flag(
        "", "which configs/<name>.pbtxt of a model to take instead of its config.pbtxt, where there"
        " is one", _plain_name,
    )  # fmt: skip
    model_config_profile: str = flag(
        "", "merge config.<profile>.pbtxt of a model over its configuration, where there is one",
        _profile_name,
    )  # fmt: skip
    model_config_env: tuple[str, ...] = flag(
        (), "environment variables that a configuration may name as ${NAME} if its first line is '#"
        " nereid: variables'; a pattern such as MODEL_*, may be given several times", str,
        repeated=True,
    )  # fmt: skip
    disable_auto_complete_config: bool = flag(
        False, "take model configurations as they are written", boolean,
        aliases=("--strict-model-config",), bare="true",
    )  # fmt: skip
    model_namespacing: bool = flag(
        False, "whether each model repository is a namespace, so that several may have models of"
        " one name: ensembles use those of their own repository, clients name unique ones", boolean,
    )  # fmt: skip
    allow_executor_control: bool = flag(
        False, "where services need a token or certificate, let executors load and unload models,"
        " as Python models may ask of them", boolean, bare="true",
    )  # fmt: skip
    exit_on_error: bool = flag(
        False, "whether the scheduler ends when a model that it begins with cannot be loaded",
        boolean, bare="true",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Settings(
    ModelControlSettings,
    RepositorySettings,
    QueueSettings,
    CacheClientSettings,
    MetricsSettings,
    MeshAccessSettings,
    RecoverySettings,
    TraceSettings,
    TimelineSettings,
    SegmentPoolSettings,
    LogSettings,
):
    """Scheduler: loads models from repositories, queues requests and sends batches to executors."""

    TOPIC: ClassVar = Topic.PROCESSES

    scheduler_address: tuple[str, ...] = flag(
        ("127.0.0.1:8003",),
        "where gateways and executors find the scheduler, host:port or unix:/path; may be given"
        " several times",
        address,
        repeated=True,
    )
    scheduler_peers: str | None = flag(
        None, "where the schedulers of a mesh with several are, as in a gateway's"
        " --scheduler-address; this one may be among them", address_list,
    )  # fmt: skip
    scheduler_name: str = flag(
        "", "this scheduler's name among its --scheduler-peers, to be kept when it restarts;"
        " default: its first --scheduler-address, with the host's name if that is 0.0.0.0",
    )  # fmt: skip
    strict_readiness: bool = flag(
        True, "whether the server is ready only while every model is", boolean, bare="true"
    )
    exit_timeout_secs: float = flag(
        30.0, "how long requests under way may take to finish after SIGTERM", seconds
    )

    @property
    def no_executor_limit_s(self) -> float:
        """Maximum time, in seconds, that requests wait while no executor has their model."""
        return self.or_restart(self.no_executor_timeout_secs)

    def errors(self) -> list[str]:
        """Return a message for each fault in these settings; an empty list if they are valid."""
        errors = [
            f"--model-repository: '{path}': there is no such directory, or it may not be read"
            for path in self.model_repository
            if not is_store_url(path)
            and not (Path(path).is_dir() and os.access(path, os.R_OK | os.X_OK))
        ]
        errors += [
            f"--model-repository: '{path}': {error}"
            for path in self.model_repository
            if is_store_url(path) and (error := _store_url_error(path))
        ]
        if self.state_directory and (error := directory_error(self.state_directory)):
            errors.append(f"--state-directory: {error}")
        if self.state_directory and self.state_name:
            errors.append("--state-directory and --state-name exclude each other")
        if self.traffic_file:
            try:
                read_traffic_file(self.traffic_file)
            except FileError as error:
                errors += [f"--traffic-file: {line}" for line in error.errors]
        if self.load_model and self.model_control_mode != "explicit":
            errors.append("--load-model requires --model-control-mode=explicit as well")
        if self.model_memory_budget and not self.lazy_loading:
            errors.append("--model-memory-budget requires --lazy-loading as well")
        if self.lazy_loading and self.scheduler_peers is not None:
            errors.append("--lazy-loading: not with several schedulers (--scheduler-peers)")
        if "*" in self.load_model and len(self.load_model) > 1:
            errors.append("--load-model: '*' must be the only one, if it is given at all")
        return errors + self.mesh_errors(self.scheduler_address)

    def shard_name(self) -> str:
        """Return this scheduler's name in a mesh that has several schedulers."""
        address = self.scheduler_address[0]
        if self.scheduler_name or unix_path(address) is not None:
            return self.scheduler_name or address
        host, port = host_and_port(address)
        return f"{socket.gethostname()}:{port}" if host in _ALL_INTERFACES else address

    def config_variables(self) -> Variables:
        """Return the environment variables that configurations of models may name."""
        return Variables(tuple(self.model_config_env), os.environ)

    def backend_settings(self, backend: str) -> dict[str, str]:
        """Return a backend's settings by key. Its own settings replace those for all backends."""
        for_all: dict[str, str] = {}
        for_it: dict[str, str] = {}
        for text in self.backend_config:
            backend_and_key, _, value = text.partition("=")
            name, _, key = backend_and_key.rpartition(",")
            if name.strip() == "":
                for_all[key.strip()] = value.strip()
            elif name.strip() == backend:
                for_it[key.strip()] = value.strip()
        return for_all | for_it
