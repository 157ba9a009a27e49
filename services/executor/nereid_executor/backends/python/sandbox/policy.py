"""Decides what a model's worker may do, from the operator's flags and the model's parameters."""

from __future__ import annotations

import errno
import logging
import marshal
import os
import pwd
import re
import site
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nereid
import nereid_executor
from nereid.backends.parameters import parameters_of, parse_count
from nereid.core.errors import InvalidArgument
from nereid.core.permitted_models import NamePatterns
from nereid_executor.backends.python.sandbox import seccomp
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.settings import UNLIMITED_CPU_S

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nereid.pb import model_config_pb2
    from nereid_executor.settings import SandboxSettings

_log = logging.getLogger(__name__)

NETWORK: Final = "network"
CONTROL: Final = "model-control"
# Native code is loaded into the executor's process.
IN_PROCESS: Final = "in-process"
_ALLOW_KEY, _MEMORY_KEY, _PROCESSES_KEY, _CPU_KEY = (
    "sandbox_allow", "sandbox_memory_bytes", "sandbox_processes", "sandbox_cpu_seconds",
)  # fmt: skip
_MAX_DESCRIPTORS: Final = 4096

_DIRECTORY: Final = Path(__file__).resolve().parent
_PROGRAM: Final = (
    "import sys; sys.path.insert(0, sys.argv[2]);"
    " from sandbox.launcher import main; main(int(sys.argv[1]))"
)
# The launcher runs in Nereid's interpreter, whatever the model's is.
_LAUNCHER: Final = (sys.executable, "-I", "-S", "-c", _PROGRAM)

_SYSTEM: Final = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/sys",
    *(f"/etc/{name}" for name in (
        "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "localtime", "timezone",
        "passwd", "group", "nsswitch.conf", "hosts", "host.conf", "resolv.conf", "services",
        "protocols", "gai.conf", "ssl/certs", "ssl/openssl.cnf", "ca-certificates", "pki/tls/certs",
        "mime.types", "os-release", "locale.alias", "alternatives", "fonts", "OpenCL", "vulkan",
        "nvidia",
    )),
    *(f"/proc/{name}" for name in (
        "cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems", "devices",
        "mounts", "sys/vm", "sys/kernel", "driver/nvidia", "driver/nvidia-uvm",
    )),
)  # fmt: skip
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_GPU_DEVICES: Final = re.compile(r"nvidia.*|dri|kfd|dxg")

# Everything else in the executor's environment may be a secret.
_VARIABLES: Final = re.compile(
    "PATH|LANG|LANGUAGE|TZ|USER|LOGNAME|NO_COLOR|LD_LIBRARY_PATH|LD_PRELOAD|(LC|OMP|GOMP|KMP|MKL|"
    "OPENBLAS|NUMEXPR|BLIS|PYTHON|CUDA|CUDNN|CUBLAS|NVIDIA|NCCL|TORCH|PYTORCH|TF_CPP|TF_FORCE|TF_ENABLE|TF_XLA|TF_GPU|XLA|JAX|ORT|TRT|"
    "MALLOC|TOKENIZERS|OPENCV|OPENCL|ROCM|HIP|HSA)_.*|PYTHON[A-Z]+|SSL_CERT_(FILE|DIR)|"
    "(REQUESTS|CURL)_CA_BUNDLE|(HF_HUB|HF_DATASETS|TRANSFORMERS)_OFFLINE"
)
_SECRET: Final = re.compile("KEY|TOKEN(?!IZERS)|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_PROBE_TIMEOUT_S: Final = 30.0


# These texts explain errors of confined models, by errno.
_HIDDEN_FILES: Final = (
    "the model is confined, and does not see files that the operator does not name by"
    " --sandbox-read-path"
)
_ADVICE: Final = {
    errno.ENOENT: _HIDDEN_FILES,
    errno.EACCES: _HIDDEN_FILES,
    errno.EROFS: "the model is confined, and may write to HOME, and by tempfile, alone",
    errno.EPERM: "the model is confined, and has no network unless its parameter sandbox_allow and"
    " --sandbox-allow name it",
}


def sandbox_advice(confinement: Confinement | None) -> dict[str, str]:
    """Return what explains a worker's errors to the model's author, by errno as JSON has it."""
    if confinement is None:
        return {}
    return {str(number): text for number, text in _ADVICE.items()}


@dataclass(frozen=True)
class Confinement:
    """Rights and limits of one model's worker."""

    allows: frozenset[str]
    read: tuple[str, ...]
    variables: frozenset[str]
    memory_bytes: int
    temporary_bytes: int
    processes: int
    # CPU time of each process.
    cpu_s: int = UNLIMITED_CPU_S
    # Models that it may call by its own right; `None` without --sandbox-call.
    calls: NamePatterns | None = None
    # Unix sockets among its own processes, if the kernel provides a root directory.
    has_unix_sockets: bool = True

    @property
    def frame_bytes(self) -> int:
        """Most bytes of a frame, and of the tensors of pending calls: the worker has no more."""
        return min(wire.MAX_FRAME, self.memory_bytes)

    def policy(self, command: list[str], temporary: Path) -> bytes:
        """Return the launcher's policy for a worker with this directory for temporary files."""
        devices = [
            entry.path
            for entry in os.scandir("/dev")
            if entry.name in _DEVICES or _GPU_DEVICES.fullmatch(entry.name)
        ]
        network = NETWORK in self.allows
        # The kernel spends time on a limit that is set.
        cpu = {"CPU": self.cpu_s} if self.cpu_s < UNLIMITED_CPU_S else {}
        message: dict[str, Any] = {
            "command": command,
            "read": [*_SYSTEM, *self.read],
            "devices": devices,
            "temporary": str(temporary),
            "temporary_bytes": self.temporary_bytes,
            "network": network,
            "filter": _filter(network, unix=False),
            "unix_filter": _filter(network, unix=self.has_unix_sockets),
            "limits": {
                "CORE": 0,
                "FSIZE": self.temporary_bytes,
                "NOFILE": _MAX_DESCRIPTORS,
                "NPROC": self.processes,
                "DATA": self.memory_bytes,
                **cpu,
            },
        }
        return marshal.dumps(message)

    def environ(self, environ: Mapping[str, str], temporary: Path) -> dict[str, str]:
        """Return the variables of environ that a worker gets, with its own directories."""
        own = str(temporary)
        kept = confined_environ(environ, self.variables)
        # getpass.getuser() would ask for the name of the user by whom processes are counted.
        user = kept.get("LOGNAME") or kept.get("USER") or _user_name()
        return {**kept, "LOGNAME": user, "USER": user, "HOME": own, "TMPDIR": own}


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def confined_environ(environ: Mapping[str, str], given: Collection[str]) -> dict[str, str]:
    """Return the variables of environ that confined workers get; given: the operator's names."""
    kept = {
        name: text
        for name, text in environ.items()
        if name in given or (_VARIABLES.fullmatch(name) and not _SECRET.search(name))
    }
    if site.ENABLE_USER_SITE:
        kept.setdefault("PYTHONUSERBASE", site.getuserbase())
    return kept


class WorkerSandbox:
    """The operator's settings for all workers of this process."""

    def __init__(self) -> None:
        self._settings: SandboxSettings | None = None
        self._has_unix_sockets = True

    def configure(self, settings: SandboxSettings, *, has_unix_sockets: bool = True) -> None:
        """Confine workers that start later as these settings say.

        has_unix_sockets: allow Unix sockets among a model's own processes.
        """
        self._settings = settings if settings.sandbox_models else None
        self._has_unix_sockets = has_unix_sockets

    def confinement_of(
        self, config: model_config_pb2.ModelConfig, model_path: Path, python: str
    ) -> Confinement | None:
        """Return a model's confinement; `None` without --sandbox-models.

        Raises InvalidArgument if the model's parameters ask for more than the operator allows.
        """
        settings = self._settings
        if settings is None:
            return None
        parameters = parameters_of(config)
        allows = frozenset(parameters.get(_ALLOW_KEY, "").replace(",", " ").split())
        if refused := sorted(allows - set(settings.sandbox_allow)):
            raise InvalidArgument(
                f"unable to load model '{config.name}', parameter '{_ALLOW_KEY}' asks for"
                f" '{refused[0]}', which --sandbox-allow does not allow"
            )

        def bound(key: str, most: int) -> int:
            return parse_count(config, parameters, key, most, most) or most

        most_bytes = settings.sandbox_memory_bytes or _machine_bytes()
        return Confinement(
            allows=allows,
            read=_readable(config, model_path, python, settings.sandbox_read_path),
            variables=frozenset(settings.sandbox_variable),
            memory_bytes=bound(_MEMORY_KEY, most_bytes),
            temporary_bytes=settings.sandbox_temporary_bytes,
            processes=bound(_PROCESSES_KEY, settings.sandbox_processes),
            cpu_s=bound(_CPU_KEY, settings.sandbox_cpu_seconds or UNLIMITED_CPU_S),
            calls=_callable_models(config.name, settings.sandbox_call),
            has_unix_sockets=self._has_unix_sockets,
        )


WORKER_SANDBOX: Final = WorkerSandbox()


def launcher_command(descriptor: int) -> list[str]:
    """Return the command that reads a policy from a descriptor and becomes the worker."""
    return [*_LAUNCHER, str(descriptor), str(_DIRECTORY.parent)]


def provided_protection(temporary: Path) -> dict[str, int]:
    """Return what this kernel provides, as launcher.confine() does; empty if that fails."""
    probe = Confinement(frozenset(), _prefixes(sys.executable), frozenset(), 1 << 40, 1 << 20, 64)
    descriptor = policy_descriptor(probe.policy([], temporary))
    try:
        output = subprocess.run(
            launcher_command(descriptor),
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        ).stdout
        provided: dict[str, int] = marshal.loads(output)  # noqa: S302 - our own process
    except (OSError, subprocess.SubprocessError, EOFError, ValueError) as error:
        _log.error("workers of models cannot be confined: %s", error)
        return {}
    finally:
        os.close(descriptor)
    return provided


def missing_protection(provided: Mapping[str, int]) -> list[str]:
    """Return what a kernel that provides this leaves open, one text each."""
    abi = provided.get("landlock", 0)
    missing = []
    if not abi:
        missing.append("no Landlock: files and other processes of the same user are open to models")
    elif abi < _SIGNAL_ABI:
        missing.append(f"Landlock {abi} < {_SIGNAL_ABI}: models can signal processes of this user")
    if not provided.get("seccomp"):
        missing.append("no seccomp: sockets and all system calls are open to models")
    if not provided.get("namespaces"):
        missing.append(
            "no user namespaces: models share /dev/shm, find others' files and connections, can"
            " change modes and times of this user's files, have no Unix sockets, and no bound on"
            " processes and on all temporary files together"
        )
    elif not provided.get("process_limit"):
        missing.append(
            "the executor runs as root with LD_ variables, or in a user namespace that lacks"
            " user 65432: no bound on models' processes"
        )
    return missing


_SIGNAL_ABI: Final = 6


def policy_descriptor(policy: bytes) -> int:
    """Return a descriptor of a file in memory that holds a policy."""
    descriptor = os.memfd_create("nereid-sandbox", os.MFD_CLOEXEC)
    os.write(descriptor, policy)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


@cache
def _filter(network: bool, *, unix: bool) -> bytes:
    try:
        return seccomp.build_filter(os.uname().machine, network=network, unix=unix)
    except ValueError:
        return b""


def _callable_models(name: str, rules: tuple[str, ...]) -> NamePatterns | None:
    """Return the models that a model may call; `None` without rules (CALLER:MODEL, patterns)."""
    if not rules:
        return None
    pairs = [rule.partition(":") for rule in rules]
    return NamePatterns(
        tuple(called for caller, _, called in pairs if NamePatterns((caller,)).match(name))
    )


def _readable(
    config: model_config_pb2.ModelConfig, model_path: Path, python: str, given: tuple[str, ...]
) -> tuple[str, ...]:
    # The worker opens it by its name in the repository, to which links may lead.
    paths = [str(model_path.resolve()), str(model_path.absolute()), *_prefixes(python), *given]
    file = Path(config.default_model_filename)
    if file.is_absolute():
        # The model.py of a Python-based backend.
        paths.append(str(file.parent))
    return tuple(dict.fromkeys(paths))


def _prefixes(python: str) -> tuple[str, ...]:
    """Return the directories of an interpreter, its packages, and Nereid's own."""
    packages = [str(Path(each.__path__[0])) for each in (nereid, nereid_executor)]
    paths = [
        _environment(Path(python)),
        _environment(Path(os.path.realpath(python))),
        *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path),
        *packages,
    ]
    # Environments of models may share numpy with Nereid's.
    paths += [sys.prefix, sys.base_prefix]
    if site.ENABLE_USER_SITE:
        paths.append(site.getusersitepackages())
    # An interpreter in /bin would open the whole system.
    return tuple(path for path in dict.fromkeys(paths) if path != "/")


def _environment(python: Path) -> str:
    """Return the directory of an interpreter's environment, or the file alone if it has none.

    EXECUTION_ENV_PATH may name any program: its folder could be that of other models.
    """
    root = python.parent.parent
    try:
        libraries = (root / "pyvenv.cfg", *root.glob("lib/python3*/os.py"))
        is_environment = python.parent.name == "bin" and any(path.is_file() for path in libraries)
    except OSError:
        is_environment = False
    return str(root if is_environment else python)


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
