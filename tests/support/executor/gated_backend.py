"""A backend whose one model blocks in execute until the test sets `released`.

With the parameter `slow_load` it cannot be loaded before `released` is set.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from nereid.backends import InstanceSpec, ModelDescription, TensorDescription
from nereid.core.tensors.tensors import Array
from nereid.pb import model_config_pb2

started = threading.Event()
released = threading.Event()
closed = threading.Event()
# Specs of the models that were loaded.
specs: list[InstanceSpec] = []


def reset() -> None:
    """No model was loaded, or has begun."""
    specs.clear()
    for event in (started, released, closed):
        event.clear()


_TENSOR = TensorDescription("x", "FP32", (-1, 2))


class GatedModel:
    """y = x, once `released` is set."""

    description = ModelDescription((_TENSOR,), (_TENSOR._replace(name="y"),))

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        started.set()
        assert released.wait(20)
        return [inputs["x"] for _ in outputs]

    def close(self) -> None:
        closed.set()


def uses_gpus() -> bool:
    return False


def describe(_config: model_config_pb2.ModelConfig, version_path: Path) -> ModelDescription:
    raise RuntimeError(f"secret of {version_path}")


def load(spec: InstanceSpec) -> GatedModel:
    if "slow_load" in spec.config.parameters:
        started.set()
        assert released.wait(20)
    specs.append(spec)
    return GatedModel()
