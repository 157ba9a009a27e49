"""A model, its requests, and what a direct call of it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


class DirectCallError(Exception):
    """The runtime itself refuses the request, so the mesh has to report an error."""


@dataclass(frozen=True)
class Case:
    """One model.

    build: writes the files of version 1. inputs, outputs: (name, datatype, dims), without a batch
    dimension. make_request: the inputs of the request with this number. call: what a direct call
    gives; raises DirectCallError. config: further text of config.pbtxt. fits_json: whether values
    survive JSON. shares_batches: whether one execution can serve several requests.
    """

    name: str
    backend: str
    batching: bool
    build: Callable[[Path], object]
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    make_request: Callable[[int], Arrays]
    call: Callable[[Arrays], Arrays]
    config: str = ""
    fits_json: bool = True
    shares_batches: bool = True

    @property
    def has_text(self) -> bool:
        """Return whether some tensor has string elements."""
        return any(datatype == "BYTES" for _, datatype, _ in (*self.inputs, *self.outputs))

    @property
    def is_large(self) -> bool:
        """Return whether its tensors travel between processes in shared memory."""
        return any(np.asarray(array).nbytes > 1 << 14 for array in self.make_request(0).values())

    def config_text(self, more: str = "") -> str:
        """Return config.pbtxt, with each tensor as it is declared."""
        lines = [
            f'backend: "{self.backend}"',
            f"max_batch_size: {8 if self.batching else 0}",
            *(_tensor("input", *tensor) for tensor in self.inputs),
            *(_tensor("output", *tensor) for tensor in self.outputs),
            self.config,
            more,
        ]
        return "\n".join(lines)

    def ensemble_text(self) -> str:
        """Return the configuration of an ensemble whose only step is this model."""
        inputs = " ".join(f'input_map {{ key: "{n}" value: "{n}" }}' for n, _, _ in self.inputs)
        outputs = " ".join(f'output_map {{ key: "{n}" value: "{n}" }}' for n, _, _ in self.outputs)
        step = f'step {{ model_name: "{self.name}" model_version: -1 {inputs} {outputs} }}'
        lines = [
            'platform: "ensemble"',
            f"max_batch_size: {8 if self.batching else 0}",
            *(_tensor("input", *tensor) for tensor in self.inputs),
            *(_tensor("output", *tensor) for tensor in self.outputs),
            f"ensemble_scheduling {{ {step} }}",
        ]
        return "\n".join(lines)


def _tensor(kind: str, name: str, datatype: str, dims: tuple[int, ...]) -> str:
    datatype = {"BYTES": "STRING"}.get(datatype, datatype)
    return f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: {list(dims)} }}'
