"""Models that have several batches at a time, as on a GPU, where copies and compute overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy as np

    from nereid.backends.description import ModelDescription
    from nereid.core.tensors.tensors import Array


class TensorParts(NamedTuple):
    """An input of a batch, in the pieces that its requests brought: their bytes in a row are its
    elements, row by row. They can be read until the batch is collected.
    """

    parts: Sequence[bytes | memoryview]
    # Of the whole, with the batch dimension.
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@runtime_checkable
class PipelinedModel(Protocol):
    """A Model that can be given a batch before it has finished the one before; its instance's
    thread alone calls it. Batches are collected in the order in which they were submitted.
    """

    description: ModelDescription
    bytes_as_text: bool
    # How many batches it takes before one has to be collected.
    pipeline_depth: int

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """As Model.execute; only while no batch is submitted."""

    def submit_batch(self, inputs: Mapping[str, TensorParts], outputs: Sequence[str]) -> None:
        """Begin executing a batch; if it raises NereidError, the model has not taken it."""

    def is_batch_complete(self) -> bool:
        """Whether collect_batch() would not have to wait."""

    def collect_batch(self) -> Sequence[Array]:
        """The oldest batch's outputs, as from execute; valid until the next call of it.

        Raises NereidError if the batch failed.
        """

    def close(self) -> None:
        """Free what the model holds; batches that were not collected are dropped."""
