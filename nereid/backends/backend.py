"""The functions of a backend, and the model that most backends load: one that executes batches."""

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
    """One instance to load: its model and its device."""

    # The complete and valid configuration.
    config: model_config_pb2.ModelConfig
    version: int
    # The version's directory, whose parent is the model's.
    version_path: Path
    # Name of the instance, unique in the executor.
    name: str
    # CUDA's number of the GPU to run on; `None` means the CPU.
    gpu: int | None = None
    # The backend's settings (--backend-config).
    settings: Mapping[str, str] = field(default_factory=dict)
    # Number of threads that the model's operators should use, so that its instances share the
    # cores; 0 if it is unknown. The configuration's parameters take precedence.
    threads: int = 0
    # Number that the scheduler has given the instance.
    number: int = 0
    # Client for requests to other models, if the model can make any.
    mesh: MeshClient | None = None
    # Function that returns whether the instance is still wanted. A load that takes long should call
    # it, and raise an error if it is not.
    is_wanted: Callable[[], bool] = _always


class Model(Protocol):
    """A loaded model that executes batches; its instance's thread alone calls it.

    An attribute `capabilities` (Capabilities) declares what it can do beyond this.
    """

    description: ModelDescription

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """Return the named outputs, in this order; raise NereidError if the model fails.

        BF16 arrays are uint16, BYTES arrays hold objects.
        """

    def close(self) -> None:
        """Free what the model holds."""


class Backend(Protocol):
    """Functions of a backend's module, which is imported on first use: model runtimes are large.

    An attribute `capabilities` (BackendCapabilities) declares what it can do beyond this.
    """

    def uses_gpus(self) -> bool:
        """Return whether it can run models on a GPU, as installed here."""

    def describe(
        self, config: model_config_pb2.ModelConfig, version_path: Path
    ) -> ModelDescription:
        """Return what the model file states; raise NereidError if it cannot be read."""

    def load(self, spec: InstanceSpec) -> Model | PipelinedModel | RequestModel:
        """Return a model that is ready to execute; raise NereidError."""


class ModelCodeBackend(Backend, Protocol):
    """A backend that may run code of a model's author to describe it, in another process."""

    def describe_runs_code(self, config: model_config_pb2.ModelConfig, version_path: Path) -> bool:
        """Return whether describing this model runs code; raise NereidError without its file."""

    def describe_within(
        self, config: model_config_pb2.ModelConfig, version_path: Path, limit_s: float | None
    ) -> ModelDescription:
        """Describe as describe() does, and kill a process that takes longer; `None` is no limit."""
