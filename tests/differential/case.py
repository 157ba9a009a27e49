"""A model, its requests, and what a direct call of it gives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

# The input of branches that says which one a row takes.
_LEFT = "takes_left_branch"

Arrays = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


class DirectCallError(Exception):
    """The runtime itself refuses the request, so the mesh has to report an error."""


@dataclass(frozen=True)
class Case:
    """One model.

    build: writes the files of version 1. inputs, outputs: (name, datatype, dims), without a batch
    dimension. make_request: the inputs of the request with this number. call: what a direct call
    gives; raises DirectCallError. config: further text of config.pbtxt. fits_json: whether values
    survive JSON. shares_batches: whether one execution can serve several requests. optional: the
    inputs that a request can leave out.
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
    optional: frozenset[str] = frozenset()

    @property
    def datatypes(self) -> frozenset[str]:
        """Return the datatypes of its tensors."""
        return frozenset(datatype for _, datatype, _ in (*self.inputs, *self.outputs))

    @property
    def has_text(self) -> bool:
        """Return whether some tensor has string elements."""
        return "BYTES" in self.datatypes

    @property
    def is_large(self) -> bool:
        """Return whether its tensors travel between processes in shared memory."""
        return any(np.asarray(array).nbytes > 1 << 14 for array in self.make_request(0).values())

    @property
    def chains(self) -> bool:
        """Return whether a further step can take its outputs: they have the rank that they are
        declared with.
        """
        rank = 1 if self.batching else 0
        for number in range(3):
            with contextlib.suppress(DirectCallError):
                made = self.call(self.make_request(number))
                if any(np.ndim(made[name]) != rank + len(dims) for name, _, dims in self.outputs):
                    return False
        return True

    @property
    def divides(self) -> bool:
        """Return whether each row of its outputs depends on the same row of its inputs alone."""
        if not (self.batching and self.chains):
            return False
        for number in range(3):
            request = self.make_request(number)
            with contextlib.suppress(DirectCallError):
                made = self.call(request)
                for row in range(len(next(iter(request.values())))):
                    alone = self.call({name: each[row : row + 1] for name, each in request.items()})
                    if any(
                        not np.array_equal(made[name][row : row + 1], alone[name]) for name in made
                    ):
                        return False
        return True

    def config_text(self, more: str = "") -> str:
        """Return config.pbtxt, with each tensor as it is declared."""
        return "\n".join([f'backend: "{self.backend}"', *self._tensors(), self.config, more])

    def composed(self) -> Case:
        """Return the case as an ensemble serves it: an output that is an input needs a name of its
        own there, which all outputs have.
        """
        outputs = tuple((f"{name}_out", datatype, dims) for name, datatype, dims in self.outputs)

        def call(arrays: Arrays) -> Arrays:
            made = self.call(arrays)
            return {f"{name}_out": array for name, array in made.items()}

        return replace(self, outputs=outputs, call=call)

    def branched(self) -> Case:
        """Return the case as an ensemble of two equal branches serves it; an input of random rows
        says which row takes which.
        """
        composed = self.composed()

        def make_request(number: int) -> Arrays:
            arrays = self.make_request(number)
            rows = len(next(iter(arrays.values())))
            left = np.random.default_rng(number).integers(0, 2, (rows, 1)).astype(bool)
            return {**arrays, _LEFT: left}

        def call(arrays: Arrays) -> Arrays:
            return composed.call({name: each for name, each in arrays.items() if name != _LEFT})

        inputs = (*self.inputs, (_LEFT, "BOOL", (1,)))
        return replace(composed, inputs=inputs, make_request=make_request, call=call)

    def branched_text(self, model: str) -> str:
        """Return the configuration of an ensemble that runs this model in both branches."""
        step = _step(model, self._input_map, self._named("{}", "{}_out"))
        conditions = [
            f'parameters {{ key: "condition.{model}#{number}" value {{ string_value: "{text}" }} }}'
            for number, text in ((1, _LEFT), (2, f"not {_LEFT}"))
        ]
        return "\n".join([_ensemble_text(self.branched(), step, step), *conditions])

    def ensemble_text(self) -> str:
        """Return the configuration of an ensemble whose only step is this model."""
        return self._ensemble(_step(self.name, self._input_map, self._named("{}", "{}_out")))

    def chain_text(self, passes: str) -> str:
        """Return the configuration of an ensemble of this model and one that passes its outputs
        on, as <name>_passed.
        """
        return self._ensemble(
            _step(self.name, self._input_map, self._named("{}", "{}_between")),
            _step(
                passes,
                self._named("{}", "{}_between"),
                self._named("{}_passed", "{}_out"),
            ),
        )

    def _named(self, key: str, value: str) -> dict[str, str]:
        return {key.format(name): value.format(name) for name, _, _ in self.outputs}

    @property
    def _input_map(self) -> dict[str, str]:
        return {name: name for name, _, _ in self.inputs}

    def _tensors(self) -> list[str]:
        return [
            f"max_batch_size: {8 if self.batching else 0}",
            *(
                tensor_text("input", *each, optional=each[0] in self.optional)
                for each in self.inputs
            ),
            *(tensor_text("output", *each) for each in self.outputs),
        ]

    def _ensemble(self, *steps: str) -> str:
        return _ensemble_text(self.composed(), *steps)


def tensor_text(
    kind: str, name: str, datatype: str, dims: tuple[int, ...], *, optional: bool = False
) -> str:
    """Return an input or output of config.pbtxt."""
    datatype = {"BYTES": "STRING"}.get(datatype, datatype)
    more = " optional: true" if optional else ""
    return f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: {list(dims)}{more} }}'


def _ensemble_text(served: Case, *steps: str) -> str:
    scheduling = f"ensemble_scheduling {{ {' '.join(steps)} }}"
    return "\n".join(['platform: "ensemble"', *served._tensors(), scheduling])


def _step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    maps = [
        f'{role}_map {{ key: "{name}" value: "{value}" }}'
        for role, names in (("input", inputs), ("output", outputs))
        for name, value in names.items()
    ]
    return f'step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'
