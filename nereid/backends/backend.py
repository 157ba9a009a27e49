"""The functions of a backend, and the model that most backends load: one that executes batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nereid.backends.description import ModelDescription
    from nereid.backends.mesh import MeshClient
    from nereid.backends.request_model import RequestModel
    from nereid.core.tensors.tensors import Array
    from nereid.pb import model_config_pb2


def _always() -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class InstanceSpec:
    """One instance to load: which model, and on which device."""

    # Complete and valid.
    config: model_config_pb2.ModelConfig
    version: int
    # The version's directory; the model's own is its parent.
    version_path: Path
    # Unique in the executor.
    name: str
    # CUDA's number of the GPU to run on; None: the CPU.
    gpu: int | None = None
    # The backend's settings (--backend-config).
    settings: Mapping[str, str] = field(default_factory=dict)
    # How many threads the model's operators should use, so that its instances share the cores; 0:
    # unknown. What the configuration's parameters ask for takes precedence.
    threads: int = 0
    # The scheduler's number of the instance.
    number: int = 0
    # For requests to other models; None: the model can make none.
    mesh: MeshClient | None = None
    # Whether the instance is still wanted; a load that takes long should ask, and raise if not.
    is_wanted: Callable[[], bool] = _always


class Model(Protocol):
    """A loaded model that executes batches; its instance's thread alone calls it.

    If it has an attribute `any_thread` that is true, execute() may also be called by another thread
    while the instance's own does nothing: `nereid serve --join all` saves the hand-over then.

    If it has an attribute `leaves_arrays` that is true, it neither writes to its inputs nor
    keeps or returns them, and does not use its outputs again: then what it wrote as a sequence's
    state is its next input without a copy, and small lone requests with one head get their inputs
    in the same arrays each time.

    If it has an attribute `memory_bytes`, that is the memory that it takes on its host; else that
    is measured, by how much the executor's process grows during the load.

    If it has an attribute `ragged_outputs`, a mapping, its keys are outputs that are split by the
    shapes of their value, a ragged input, where no `batch_output` of the configuration says so.
    """

    description: ModelDescription
    # Input elements of BYTES arrive as str. Requests whose elements are not UTF-8 are refused, or,
    # if the model has an attribute `escapes_bytes` that is true, have surrogates for bad bytes.
    bytes_as_text: bool

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """The named outputs, in this order; raises NereidError if the model fails.

        BF16 arrays are uint16, BYTES arrays hold objects.
        """

    def close(self) -> None:
        """Free what the model holds."""


class Backend(Protocol):
    """What a backend's module offers. It is imported on first use: model runtimes are large."""

    def uses_gpus(self) -> bool:
        """Whether it can run models on a GPU, as installed here."""

    def describe(
        self, config: model_config_pb2.ModelConfig, version_path: Path
    ) -> ModelDescription:
        """What the model file states; raises NereidError if it cannot be read."""

    def load(self, spec: InstanceSpec) -> Model | RequestModel:
        """A model that is ready to execute; raises NereidError."""
