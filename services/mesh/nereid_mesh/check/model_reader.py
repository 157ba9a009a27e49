"""Reads model files through the backends.

A Python model's code runs only on request, native code in a confined process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from nereid.backends import backend_capabilities_of
from nereid.core.errors import NereidError, Unavailable, error_from_code
from nereid.core.tensors.classification import read_labels
from nereid.core.wire.codecs import read_error, write_error
from nereid.core.wire.messages import error_status_of
from nereid.model_config import check_model_file, read_description
from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_executor.backends.native.backend import ConfinedBackend
from nereid_executor.backends.python.sandbox.policy import WorkerSandbox
from nereid_executor.batch.sequence_states import state_specs
from nereid_executor.batch.warmup import read_samples
from nereid_executor.instances.description_runs import DescriptionLimits
from nereid_executor.instances.descriptions import describe_model
from nereid_executor.settings import SandboxSettings

if TYPE_CHECKING:
    from collections.abc import Collection

    from nereid.backends import Backend, ModelCodeBackend, ModelDescription
    from nereid_executor.backends.registry import BackendRegistry

NOT_RUN = "its auto_complete_config was not run"


class ModelReader:
    """Reader of model files, which reads the file of each version only once."""

    def __init__(
        self,
        backends: BackendRegistry,
        assumed: Collection[str] = (),
        *,
        run_code: bool = False,
        readable: Collection[str] = (),
    ) -> None:
        """Create a reader; executors are assumed to have `assumed` backends as well.

        readable: directories that native code of models may read as well.
        """
        self._backends = backends
        self._assumed = frozenset(assumed).difference(backends.available_backends())
        self._run_code = run_code
        self._sandbox = WorkerSandbox()
        self._sandbox.configure(
            SandboxSettings(sandbox_models=True, sandbox_read_path=tuple(readable))
        )
        self._described: dict[tuple[str, ...], pb.Described] = {}
        # Key: a version's directory. Value: why its model file was not read.
        self.unread: dict[str, str] = {}
        # Directories of versions that could not be completed without the model file.
        self.incomplete: set[str] = set()

    @property
    def offered(self) -> list[str]:
        """The backends that models may use."""
        return sorted({*self._backends.available_backends(), *self._assumed})

    def description(self, version_path: str) -> ModelDescription | None:
        """Return what the model file states; `None` if it states nothing or was not read."""
        for key, described in self._described.items():
            if key[-1] == version_path and (described.inputs or described.outputs):
                return read_description(described)
        return None

    def describe(self, command: pb.Describe) -> pb.Described:
        """Return the response that an executor would give to a Describe command."""
        described = pb.Described()
        try:
            described = self._describe(command.config, Path(command.version_path))
            reason = self.unread.get(command.version_path)
            is_written = bool(command.config.input and command.config.output)
            if reason is not None and not (is_written and reason == NOT_RUN):
                self.incomplete.add(command.version_path)
                raise Unavailable(f"not checked: {reason}")
        except NereidError as error:
            write_error(error_status_of(error), described.error)
        described.command = command.command
        return described

    def check_load(self, command: pb.LoadInstance) -> None:
        """Check from the files whether an instance could be loaded; raise NereidError."""
        config, path = command.config, Path(command.version_path)
        described = self._describe(config, path)
        if described.HasField("error"):
            status = read_error(described.error)
            raise error_from_code(status.code, status.message)
        if described.inputs or described.outputs:
            check_model_file(config, read_description(described))
        read_labels(config, path.parent)
        state_specs(config, path.parent)
        for _ in read_samples(config, path.parent):
            pass

    def _describe(self, config: model_config_pb2.ModelConfig, path: Path) -> pb.Described:
        key: tuple[str, ...] = (config.backend, config.default_model_filename, str(path))
        if key not in self._described:
            described = pb.Described()
            reason = self._unread_reason(config, path)
            if reason:
                self.unread[str(path)] = reason
            else:
                described = describe_model(
                    self._backends,
                    pb.Describe(config=config, version_path=str(path)),
                    path,
                    DescriptionLimits.timeout_s,
                    confine=self._confined,
                )
            self._described[key] = described
        described = pb.Described()
        described.CopyFrom(self._described[key])
        return described

    def _confined(
        self, backend: Backend, config: model_config_pb2.ModelConfig, path: Path
    ) -> Backend:
        loads = backend_capabilities_of(backend).loads_native_code
        if loads is None or not loads(config):
            return backend
        # Without the parameters by which the model asks for rights.
        bare = model_config_pb2.ModelConfig(name=config.name)
        confinement = self._sandbox.confinement_of(bare, path.parent, sys.executable)
        assert confinement is not None, "the settings say so"
        return ConfinedBackend(confinement, backend)

    def _unread_reason(self, config: model_config_pb2.ModelConfig, path: Path) -> str:
        if config.backend in self._assumed:
            return f"backend '{config.backend}' is not installed here"
        if self._run_code:
            return ""
        backend = self._backends.load_backend(config.backend, config.runtime)
        if not backend_capabilities_of(backend).runs_model_code:
            return ""
        runs = cast("ModelCodeBackend", backend).describe_runs_code(config, path)
        return NOT_RUN if runs else ""
