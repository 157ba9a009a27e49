"""Models that have several batches at a time, as on a GPU, where copies and compute overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy as np

    from nereid.backends.description import ModelDescription
    from nereid.core.tensors.tensors import Array


class TensorParts(NamedTuple):
    """An input of a batch, in the pieces that its requests brought.

    The pieces' bytes in a row are the input's elements, row by row. They can be read until the
    batch is collected.
    """

    parts: Sequence[bytes | memoryview]
    # Shape of the whole, with the batch dimension.
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class PipelinedModel(Protocol):
    """A Model that accepts a batch before it has finished the one before.

    It declares a `pipeline_depth` (Capabilities). Its instance's thread alone calls it. Batches are
    collected in the order in which they were submitted.
    """

    description: ModelDescription

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """Execute as Model.execute() does; called only while no batch is submitted."""

    def submit_batch(self, inputs: Mapping[str, TensorParts], outputs: Sequence[str]) -> None:
        """Begin executing a batch; the model has not taken it if this raises NereidError."""

    def is_batch_complete(self) -> bool:
        """Return whether collect_batch() would not have to wait."""

    def collect_batch(self) -> Sequence[Array]:
        """Return the oldest batch's outputs, which are valid until the next call.

        Raises NereidError if the batch failed.
        """

    def close(self) -> None:
        """Free what the model holds; batches that were not collected are dropped."""
