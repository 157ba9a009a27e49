"""Backends that are a folder with a model.py, which Triton calls Python-based.

Such a file runs every model of its backend, where the Python backend runs a file of each model's
own. Knows how to hand one over to the Python backend, and nothing of how that runs it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nereid.pb import model_config_pb2
from nereid_executor.backends.python import backend

if TYPE_CHECKING:
    from pathlib import Path

    from nereid.backends import InstanceSpec, ModelDescription, RequestModel


class PythonBased:
    """One such backend, by its model.py."""

    def __init__(self, source: Path) -> None:
        self._source = source

    def uses_gpus(self) -> bool:
        return backend.uses_gpus()

    def describe(
        self, config: model_config_pb2.ModelConfig, version_path: Path
    ) -> ModelDescription:
        return self.describe_within(config, version_path, None)

    def describe_within(
        self, config: model_config_pb2.ModelConfig, version_path: Path, limit_s: float | None
    ) -> ModelDescription:
        described = backend.describe_within(self._with_source(config), version_path, limit_s)
        if described.config is not None:
            described.config.default_model_filename = config.default_model_filename
        return described

    def describe_runs_code(self, config: model_config_pb2.ModelConfig, version_path: Path) -> bool:
        return backend.describe_runs_code(self._with_source(config), version_path)

    def load(self, spec: InstanceSpec) -> RequestModel:
        return backend.load(replace(spec, config=self._with_source(spec.config)))

    def _with_source(self, config: model_config_pb2.ModelConfig) -> model_config_pb2.ModelConfig:
        """A configuration whose model file is the backend's: an absolute path is kept as it is."""
        copy = model_config_pb2.ModelConfig()
        copy.CopyFrom(config)
        copy.default_model_filename = str(self._source.absolute())
        return copy
