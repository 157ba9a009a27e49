"""A model in Python, for tests of what executes any backend's models."""

from __future__ import annotations

from collections.abc import Sequence

from nereid.backends import EMPTY_DESCRIPTION
from nereid.core.tensors.tensors import Array


class Doubler:
    """y = 2 x; or it raises `failure`."""

    description = EMPTY_DESCRIPTION

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.batches: list[list[float]] = []

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        self.batches.append(inputs["x"].ravel().tolist())
        if self.failure:
            raise self.failure
        return [inputs["x"] * 2 for _ in outputs]

    def close(self) -> None:
        pass
