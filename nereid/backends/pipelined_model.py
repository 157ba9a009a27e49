"""Models that accept several batches at a time, as on a GPU, where copies and compute overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy as np

    from nereid.backends.description import ModelDescription
    from nereid.core.tensors.tensors import Array


class TensorParts(NamedTuple):
    """An input of a batch, in pieces that can be read until the batch is collected."""

    parts: Sequence[bytes | memoryview]
    # Includes the batch dimension.
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class PipelinedModel(Protocol):
    """A Model that accepts a batch before it has finished the previous one.

    It declares a `pipeline_depth` (Capabilities). Batches are collected in the order of submission.
    """

    description: ModelDescription

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """Execute a batch like Model.execute(). This is called only while no batch is submitted."""

    def submit_batch(self, inputs: Mapping[str, TensorParts], outputs: Sequence[str]) -> None:
        """Begin executing a batch. If this raises NereidError, the batch is not accepted."""

    def is_batch_complete(self) -> bool:
        """Return whether collect_batch() would return without waiting."""

    def collect_batch(self) -> Sequence[Array]:
        """Wait for and return the oldest batch's outputs, or raise NereidError.

        The outputs are valid until the next call.
        """

    def close(self) -> None:
        """Free all resources, and drop the batches that were not collected."""
