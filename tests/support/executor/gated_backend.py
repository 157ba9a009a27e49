"""A backend whose one model blocks in execute until the test sets `released`.

With the parameter `pipelined` it is one that has two batches at a time; with `slow_load` it cannot
be loaded before `released` is set.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from nereid.backends import InstanceSpec, ModelDescription, TensorDescription, TensorParts
from nereid.core.tensors import Array
from nereid.pb import model_config_pb2

started = threading.Event()
released = threading.Event()
closed = threading.Event()
# A pipelined model has two batches.
both_submitted = threading.Event()
# Of the models that were loaded.
specs: list[InstanceSpec] = []

_TENSOR = TensorDescription("x", "FP32", (-1, 2))


class GatedModel:
    """y = x, once `released` is set."""

    description = ModelDescription((_TENSOR,), (_TENSOR._replace(name="y"),))
    bytes_as_text = False

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        started.set()
        assert released.wait(20)
        return [inputs["x"] for _ in outputs]

    def close(self) -> None:
        closed.set()


class PipelinedGatedModel(GatedModel):
    """y = x, with batches that are complete once `released` is set."""

    pipeline_depth = 2

    def __init__(self) -> None:
        self.submitted: deque[Array] = deque()

    def submit_batch(self, inputs: Mapping[str, TensorParts], _outputs: Sequence[str]) -> None:
        parts, shape, dtype = inputs["x"]
        self.submitted.append(np.frombuffer(b"".join(parts), dtype).reshape(shape))
        if len(self.submitted) == 2:
            both_submitted.set()

    def is_batch_complete(self) -> bool:
        return released.is_set()

    def collect_batch(self) -> Sequence[Array]:
        assert released.wait(20)
        return [self.submitted.popleft()]


def uses_gpus() -> bool:
    return False


def describe(_config: model_config_pb2.ModelConfig, version_path: Path) -> ModelDescription:
    raise RuntimeError(f"secret of {version_path}")


def load(spec: InstanceSpec) -> GatedModel:
    if "slow_load" in spec.config.parameters:
        started.set()
        assert released.wait(20)
    specs.append(spec)
    return PipelinedGatedModel() if "pipelined" in spec.config.parameters else GatedModel()
