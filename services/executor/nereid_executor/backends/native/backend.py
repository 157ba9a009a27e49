"""Chooses the models that get a confined process of their own, describes them and loads them."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Final

from nereid.backends import BackendCapabilities, InstanceSpec, backend_capabilities_of
from nereid.backends.parameters import parameters_of, parse_boolean
from nereid.config.inherited_secrets import public_environ
from nereid.core.errors import NereidError
from nereid_executor.backends.native.forked_process import FORK_SERVERS
from nereid_executor.backends.native.model import NativeModel, start_worker
from nereid_executor.backends.python.sandbox.policy import (
    IN_PROCESS,
    WORKER_SANDBOX,
    confined_environ,
)
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire

if TYPE_CHECKING:
    from pathlib import Path

    from nereid.backends import Backend, ModelDescription
    from nereid.pb import model_config_pb2
    from nereid_executor.backends.python.sandbox.policy import Confinement
    from nereid_executor.backends.registry import BackendRegistry
    from nereid_executor.settings import ExecutorSettings

_PROCESS_KEY: Final = "sandbox_process"


def confined(backend: Backend, config: model_config_pb2.ModelConfig, version_path: Path) -> Backend:
    """Return the backend, or one that gives this model a confined process of its own.

    With --sandbox-models, models that load native code of others get one, and those that ask for
    it. Raises InvalidArgument if the model asks for more than the operator allows.
    """
    capabilities = backend_capabilities_of(backend)
    if capabilities.runs_model_code:
        return backend
    confinement = WORKER_SANDBOX.confinement_of(config, version_path.parent, sys.executable)
    if confinement is None:
        return backend
    loads = capabilities.loads_native_code
    is_confined = loads is not None and loads(config) and IN_PROCESS not in confinement.allows
    if is_confined or parse_boolean(config, parameters_of(config), _PROCESS_KEY, default=False):
        return ConfinedBackend(confinement, backend)
    return backend


def start_fork_servers(registry: BackendRegistry, settings: ExecutorSettings) -> None:
    """Import the backends of --preload-backend ahead of their first confined models."""
    environ = confined_environ(public_environ(), settings.sandbox_variable)
    for name in settings.preload_backend:
        # Their loads report failures.
        with contextlib.suppress(NereidError, OSError):
            if backend_capabilities_of(registry.load_backend(name)).loads_native_code is not None:
                FORK_SERVERS.start(name, environ)


def _package_directories(backend: Backend) -> list[str]:
    """Return where the backend's package is: it may be installed outside of the environment."""
    module = backend.__name__ if isinstance(backend, ModuleType) else type(backend).__module__
    return [*getattr(sys.modules.get(module.partition(".")[0]), "__path__", ())]


class ConfinedBackend:
    """Describes and loads one model of a backend in processes with this confinement."""

    capabilities = BackendCapabilities(runs_model_code=True)

    def __init__(self, confinement: Confinement, backend: Backend) -> None:
        read = (*confinement.read, *_package_directories(backend))
        self._confinement = replace(confinement, read=read)

    def uses_gpus(self) -> bool:
        """Return False: the model's own backend decides."""
        return False

    def describe_runs_code(self, _config: model_config_pb2.ModelConfig, _path: Path) -> bool:
        """Return True: describing the model loads its code."""
        return True

    def describe(
        self, config: model_config_pb2.ModelConfig, version_path: Path
    ) -> ModelDescription:
        """Return what the model's own backend says."""
        return self.describe_within(config, version_path, None)

    def describe_within(
        self, config: model_config_pb2.ModelConfig, version_path: Path, limit_s: float | None
    ) -> ModelDescription:
        """Describe as describe() does, but kill a worker that takes longer than limit_s."""
        spec = InstanceSpec(config=config, version=0, version_path=version_path, name=config.name)
        worker, description, _ = start_worker(wire.DESCRIBE, spec, self._confinement, limit_s)
        worker.kill()
        return description

    def load(self, spec: InstanceSpec) -> NativeModel:
        """Return a model in a new process; raise NereidError if it cannot be loaded."""
        return NativeModel(spec, self._confinement)
