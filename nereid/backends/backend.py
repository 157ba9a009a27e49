"""The functions of a backend, and Model, the kind of model that most backends load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nereid.backends.description import ModelDescription
    from nereid.backends.mesh import MeshClient
    from nereid.backends.pipelined_model import PipelinedModel
    from nereid.backends.request_model import RequestModel
    from nereid.core.tensors.tensors import Array
    from nereid.pb import model_config_pb2


def _always() -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class InstanceSpec:
    """One instance to load: its model, its device and its settings."""

    config: model_config_pb2.ModelConfig
    version: int
    # Directory of the version. Its parent is the model's directory.
    version_path: Path
    # The name is unique in the executor.
    name: str
    # CUDA's number; `None` means that the instance runs on the CPU.
    gpu: int | None = None
    # Settings from --backend-config.
    settings: Mapping[str, str] = field(default_factory=dict)
    # Threads for the model's operators; 0 if unknown. The configuration takes precedence.
    threads: int = 0
    number: int = 0
    # `None` if the model cannot send requests to other models.
    mesh: MeshClient | None = None
    # Returns whether the instance is still wanted. A long load calls it repeatedly, and raises an
    # error once it returns false.
    is_wanted: Callable[[], bool] = _always


class Model(Protocol):
    """A loaded model that executes batches; only its instance's thread calls it.

    An optional attribute `capabilities` (Capabilities) declares more.
    """

    description: ModelDescription

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """Return the named outputs in the order of the names; raise NereidError if the model fails.

        Arrays of BF16 have the dtype uint16; arrays of BYTES hold objects.
        """

    def close(self) -> None:
        """Free all resources that the model holds."""


class Backend(Protocol):
    """The functions of a backend's module.

    An optional attribute `capabilities` (BackendCapabilities) declares more.
    """

    def uses_gpus(self) -> bool:
        """Return whether the backend, as installed on this host, can run models on a GPU."""

    def describe(
        self, config: model_config_pb2.ModelConfig, version_path: Path
    ) -> ModelDescription:
        """Return the model file's description; raise NereidError if the file is unreadable."""

    def load(self, spec: InstanceSpec) -> Model | PipelinedModel | RequestModel:
        """Return a model that is ready to execute; raise NereidError if it cannot be loaded."""


class ModelCodeBackend(Backend, Protocol):
    """A backend that may run a model author's code, in another process, to describe the model."""

    def describe_runs_code(self, config: model_config_pb2.ModelConfig, version_path: Path) -> bool:
        """Return whether describing the model runs code; raise NereidError without a model file."""

    def describe_within(
        self, config: model_config_pb2.ModelConfig, version_path: Path, limit_s: float | None
    ) -> ModelDescription:
        """Describe the model, but kill the process after limit_s; `None` sets no limit."""
