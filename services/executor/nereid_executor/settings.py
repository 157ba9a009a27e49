"""The executor's flags and environment variables. No other module of the executor reads them."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from dataclasses import dataclass
from math import ceil
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from nereid.config import flags
from nereid.config.flags import Topic, flag
from nereid.config.inherited_secrets import read_environ
from nereid.config.recovery import RecoverySettings
from nereid.config.settings_reader import read_settings
from nereid.mesh_auth.roles import Role
from nereid.mesh_auth.settings import MeshAccessSettings
from nereid.object_store.settings import RepositoryCacheSettings
from nereid.observability.logging import LogSettings
from nereid.observability.trace_config import TraceSettings
from nereid.rpc.net.scheduler_addresses import address_list
from nereid.shm.settings import SegmentSettings
from nereid.timeline.settings import TimelineSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM: Final = "nereid_executor"

UNLIMITED_CPU_S: Final = 1_000_000_000


class PathMapping(NamedTuple):
    """A directory: the path by which the scheduler names it, and the path on this executor."""

    theirs: PurePosixPath
    mine: PurePosixPath

    def __str__(self) -> str:
        return f"{self.theirs}={self.mine}"


def _gpus(text: str) -> str:
    if text not in ("all", "none") and not all(
        part.strip().isdecimal() for part in text.split(",")
    ):
        raise ValueError("expected all, none, or GPUs' numbers such as 0,2")
    return text


def _milliseconds(text: str) -> int:
    """Parse a number of milliseconds. Triton accepts fractions; they are rounded up."""
    try:
        return ceil(flags.seconds(text))
    except ValueError:
        raise ValueError("expected a number of milliseconds, not negative") from None


def _path_mapping(text: str) -> PathMapping:
    theirs, equals, mine = text.partition("=")
    if not (equals and theirs.startswith("/") and mine.startswith("/")):
        raise ValueError("expected /scheduler's/path=/executor's/path")
    return PathMapping(PurePosixPath(theirs), PurePosixPath(mine))


def _directory(text: str) -> str:
    if text and not PurePosixPath(text).is_absolute():
        raise ValueError("expected an absolute path")
    return text


def _call_rule(text: str) -> str:
    caller, _, called = text.partition(":")
    if not caller or not called:
        raise ValueError("expected CALLER:MODEL")
    return text


@dataclass(frozen=True, kw_only=True)
class PackageSettings:
    """The flags of packages that Python models bring."""

    TOPIC: ClassVar = Topic.MODELS

    model_packages: str = flag(
        "on", "whether the packages that Python models name (requirements.txt, or PEP 723 lines in"
        " model.py) are installed, in environments of their own: on, offline (from wheelhouses"
        " alone), or off (such files have no effect). An installation runs the packages' code",
        flags.choice("on", "offline", "off"), hardened="off",
    )  # fmt: skip
    model_wheelhouse: str = flag(
        "", "a directory with packages for Python models; with it, or a directory wheels beside the"
        " model, they come from there alone, and from no index", _directory,
    )  # fmt: skip
    model_environment_directory: str = flag(
        "", "where environments of Python models are kept on this host, for all its executors;"
        " default: nereid/environments in the user's cache directory", _directory,
    )  # fmt: skip
    model_environment_bytes: int = flag(
        50 << 30, "how large that may grow before environments that no model uses are removed, the"
        " least recently used first; also beyond 100 of them; 0: as large as the disk allows",
        flags.integer(0),
    )  # fmt: skip
    model_build_timeout_secs: float = flag(
        1800.0, "how long the packages of one Python model may take to install; other limits on"
        " loads count from then", flags.seconds,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SandboxSettings:
    """The flags of what models' own code may do."""

    TOPIC: ClassVar = Topic.MODELS

    sandbox_models: bool = flag(
        False, "confine the workers of Python models, and run models that load native code of"
        " others in such workers, with what the kernel provides (Landlock,"
        " seccomp, namespaces): no files but the model's own, its interpreter's and temporary ones,"
        " no network, no other processes", flags.boolean, bare="true", hardened="true",
    )  # fmt: skip
    sandbox_allow: tuple[str, ...] = flag(
        (), "a right that confined models may ask for by their parameter sandbox_allow: network,"
        " model-control (loads and unloads by BLS), or in-process (native code is loaded into the"
        " executor's process); may be given several times",
        flags.choice("network", "model-control", "in-process"), repeated=True,
    )  # fmt: skip
    sandbox_read_path: tuple[str, ...] = flag(
        (), "a directory that confined models may read and execute as well; may be given several"
        " times", _directory, repeated=True,
    )  # fmt: skip
    sandbox_variable: tuple[str, ...] = flag(
        (), "an environment variable that confined models get as well as those of interpreters and"
        " numerical libraries; may be given several times", repeated=True,
    )  # fmt: skip
    sandbox_memory_bytes: int = flag(
        0, "memory of each process of a confined model (RLIMIT_DATA) and of its pending calls, and"
        " the most that its parameter sandbox_memory_bytes may set; 0: as much as the machine has",
        flags.integer(0),
    )  # fmt: skip
    sandbox_temporary_bytes: int = flag(
        1 << 30, "size of a confined worker's temporary files, of its shared memory, and of one"
        " file", flags.integer(1),
    )  # fmt: skip
    sandbox_processes: int = flag(
        4096, "processes and threads of a confined worker, and the most that its parameter"
        " sandbox_processes may set", flags.integer(1),
    )  # fmt: skip
    sandbox_cpu_seconds: int = flag(
        0, "CPU time of each process of a confined model, which ends it, and the most that its"
        " parameter sandbox_cpu_seconds may set; 0: no limit", flags.integer(0, UNLIMITED_CPU_S),
    )  # fmt: skip
    sandbox_call: tuple[str, ...] = flag(
        (), "CALLER:MODEL, patterns as in a shell: a confined model that may call other models by"
        " BLS, and these; may be given several times; none: any, with --auth-config its clients'",
        _call_rule, repeated=True,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings(
    RepositoryCacheSettings,
    PackageSettings,
    SandboxSettings,
    MeshAccessSettings,
    RecoverySettings,
    TraceSettings,
    TimelineSettings,
    SegmentSettings,
    LogSettings,
):
    """Executor: loads models and executes batches for the scheduler that it joins."""

    TOPIC: ClassVar = Topic.EXECUTORS
    MESH_ROLES: ClassVar = frozenset({Role.EXECUTOR})

    scheduler_address: str = flag(
        "127.0.0.1:8003",
        "the scheduler: host:port or unix:/path; several, with commas between them: all of the"
        " mesh's; dns:host:port: every address that the name has, looked up again every few"
        " seconds",
        address_list,
    )
    name: str = flag(
        "", "this executor's name, unique in the mesh; default: host, process id, random letters"
    )
    gpus: str = flag("all", "the GPUs to offer: all, none, or their numbers, such as 0,2", _gpus)
    model_repository_map: tuple[PathMapping, ...] = flag(
        (), "theirs=mine: a directory as the scheduler names it, and as it is named here; may be "
        "given several times", _path_mapping, repeated=True,
    )  # fmt: skip
    backend_directory: str = flag(
        "", "a directory of Python-based backends, each a folder with a model.py"
    )
    preload_backend: tuple[str, ...] = flag(
        (), "a backend to import at the start, while the scheduler starts as well, instead of with "
        "its first model; may be given several times. By default, nereid serve gives those that "
        "the files in its repositories are for", repeated=True,
    )  # fmt: skip
    exit_timeout_secs: float = flag(
        30.0, "how long running batches may take to finish after SIGTERM", flags.seconds
    )

    cpu_cores: int = flag(
        0,
        "how many processor cores the threads of models' operators may occupy; 0: all that the"
        " process may use, by its affinity and its cgroup's quota",
        flags.integer(0),
    )
    kept_instance_secs: float | None = flag(
        None,
        "how long instances that have lost their scheduler stay loaded for one that asks for the"
        " same, from when a scheduler has joined or has asked last; by default"
        " --mesh-restart-secs; 0: they are unloaded at once",
        flags.seconds,
    )
    model_load_thread_count: int = flag(
        4,
        "how many instances may be loading at a time; one that takes longer than a minute does"
        " not count any more",
        flags.integer(1),
    )
    model_describe_timeout_secs: float = flag(
        120.0, "how long a model's file, or a Python model's auto_complete_config, may take to say"
        " what the configuration leaves open; other models load meanwhile", flags.seconds,
    )  # fmt: skip
    malloc_arenas: int = flag(
        0, "how many arenas the C library's allocator may have; few make loads and unloads cheaper,"
        " many suit instances that execute at a time; 0: its own default, or 2 where nereid serve"
        " has a --model-memory-budget", flags.integer(0),
    )  # fmt: skip
    nvtx: bool = flag(
        False, "mark what instances do with batches as NVTX ranges, which NVIDIA's Nsight shows;"
        " needs the package nvtx or the library libnvToolsExt", flags.boolean, bare="true",
    )  # fmt: skip
    metrics_interval_ms: int = flag(
        2000, "how often to report CPU, memory and GPU usage; 0: never", _milliseconds
    )
    metrics_port: int = flag(
        -1, "a port for this executor's own /metrics; -1: none", flags.own_port
    )
    metrics_address: str = flag(
        "0.0.0.0", "the interface of the metrics port", hardened="127.0.0.1"
    )

    def errors(self) -> list[str]:
        """Return the errors in these settings, one line each."""
        return self.mesh_errors()

    def select_gpus(self, visible: Sequence[int]) -> tuple[int, ...]:
        """Return the visible GPUs that the executor offers."""
        if self.gpus in ("all", "none"):
            return tuple(visible) if self.gpus == "all" else ()
        chosen = {int(part) for part in self.gpus.split(",")}
        return tuple(gpu for gpu in visible if gpu in chosen)

    def local_path(self, theirs: str) -> str:
        """Return the local path for a scheduler's path, by the longest mapping that applies."""
        path = PurePosixPath(theirs)
        mappings = self.model_repository_map
        applicable = [mapping for mapping in mappings if path.is_relative_to(mapping.theirs)]
        if not applicable:
            return theirs
        best = max(applicable, key=lambda mapping: len(mapping.theirs.parts))
        return str(best.mine / path.relative_to(best.theirs))

    def own_name(self) -> str:
        """Return the executor's name in the mesh."""
        # Containers may share both host name and process id. Without random letters, such executors
        # would replace each other at the scheduler again and again.
        return self.name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def read(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> ExecutorSettings:
    """Return the settings of this process. If there are errors, print them all and exit with 2."""
    return read_settings(
        ExecutorSettings,
        sys.argv[1:] if argv is None else argv,
        read_environ() if environ is None else environ,
        PROGRAM,
    )


def visible_gpus() -> str | None:
    """Return CUDA's own selection of GPUs, which changes their numbers; `None` means all GPUs."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def prepare_environment() -> None:
    """Set variables that libraries read at their first use, unless the user has set them."""
    # With this order, CUDA numbers GPUs as NVML does.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    # By default, ONNX Runtime's official builds send telemetry.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
