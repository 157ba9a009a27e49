"""Backends that consist of one model.py for all their models, which Triton calls Python-based."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nereid.core.known_backends import PYTHON_FILE
from nereid.pb import model_config_pb2
from nereid_executor.backends.python import backend

if TYPE_CHECKING:
    from pathlib import Path

    from nereid.backends import InstanceSpec, ModelDescription, RequestModel


class PythonBased:
    """A Python-based backend with this model.py."""

    capabilities = backend.capabilities

    def __init__(self, source: Path) -> None:
        self._source = source

    def uses_gpus(self) -> bool:
        """Return whether the executor must offer GPUs."""
        return backend.uses_gpus()

    def describe(
        self, config: model_config_pb2.ModelConfig, version_path: Path
    ) -> ModelDescription:
        """Return the configuration as the backend's auto_complete_config completes it."""
        return self.describe_within(config, version_path, None)

    def describe_within(
        self, config: model_config_pb2.ModelConfig, version_path: Path, limit_s: float | None
    ) -> ModelDescription:
        """Do the same as describe(), but kill a worker that takes longer than limit_s."""
        described = backend.describe_within(self._with_source(config), version_path, limit_s)
        if described.config is not None:
            described.config.default_model_filename = config.default_model_filename
            described.config.runtime = config.runtime
        return described

    def describe_runs_code(self, config: model_config_pb2.ModelConfig, version_path: Path) -> bool:
        """Return whether describe() runs the backend's code in a worker."""
        return backend.describe_runs_code(self._with_source(config), version_path)

    def load(self, spec: InstanceSpec) -> RequestModel:
        """Start a worker for this instance and initialise its model."""
        return backend.load(replace(spec, config=self._with_source(spec.config)))

    def _with_source(self, config: model_config_pb2.ModelConfig) -> model_config_pb2.ModelConfig:
        copy = model_config_pb2.ModelConfig()
        copy.CopyFrom(config)
        copy.default_model_filename = str(self._source.absolute())
        copy.runtime = PYTHON_FILE
        return copy
