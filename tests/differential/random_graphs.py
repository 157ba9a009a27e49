"""ONNX graphs of a few operations that a seed chooses, of random datatypes, shapes and outputs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime_errors

from tests.differential.case import Arrays, Case, DirectCallError
from tests.differential.onnx_graphs import DTYPES, Graph, random_array
from tests.support.models.onnx_models import value, write
from tests.support.models.onnx_types import ONNX_TYPE

node = helper.make_node
_NUMBERS = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
_FLOATS = ("FP16", "FP32", "FP64", "BF16")
# What C++ defines for each value: no numbers with a fraction become integers.
_CASTS = {
    **dict.fromkeys(_NUMBERS, (*_NUMBERS, "BOOL", "FP32", "FP64")),
    **dict.fromkeys(_FLOATS, (*_FLOATS, "BOOL")),
    "BOOL": (*_NUMBERS, *_FLOATS[:3]),
}
_ADDED = ("INT32", "INT64", "FP16", "FP32", "FP64")
_DATATYPES = tuple(DTYPES)
_MAX_OPERATIONS = 6
# Requests differ in their shapes as often.
_HEADS = 12
_MAX_DRAWS = 200
# What the runtime says to a graph that it has no kernel for, or that it cannot run.
_REFUSED = (
    runtime_errors.Fail,
    runtime_errors.InvalidArgument,
    runtime_errors.InvalidGraph,
    runtime_errors.NotImplemented,
    runtime_errors.RuntimeException,
    DirectCallError,
)


Dims = tuple[int | str, ...]


class _Value(NamedTuple):
    """A tensor of the graph; a dimension with a name has a size of the request's."""

    name: str
    datatype: str
    dims: Dims


def cases(seed: int, count: int) -> list[Case]:
    """Return so many graphs, with requests of this seed."""
    return [_draw_until_it_runs(seed, number) for number in range(count)]


def _draw_until_it_runs(seed: int, number: int) -> Case:
    """Return the first graph drawn that the runtime has all kernels for."""
    for draw in range(_MAX_DRAWS):
        case = _Drawing(np.random.default_rng([seed, number, draw]), f"random_{number}").case(seed)
        with contextlib.suppress(*_REFUSED):
            if case is not None:
                with tempfile.TemporaryDirectory() as directory:
                    case.build(Path(directory))
                for request in range(_HEADS):
                    case.call(case.make_request(request))
                return case
    raise AssertionError(f"no graph of seed {seed}, number {number}, runs")


class _Drawing:
    """One graph while it is drawn. A batching one keeps the first dimension of all its tensors."""

    def __init__(self, rng: np.random.Generator, name: str) -> None:
        self._rng, self._name = rng, name
        self._batching = bool(rng.integers(2))
        self._inputs: list[_Value] = []
        self._values: list[_Value] = []
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []

    def case(self, seed: int) -> Case | None:
        """Return the graph, or None if Nereid says that it does not serve such."""
        common = self._choose(_DATATYPES)
        for place in range(self._rng.integers(1, 4)):
            datatype = self._choose((common, common, self._choose(_DATATYPES)))
            self._inputs.append(_Value(f"X{place}", datatype, self._dims()))
        self._values += self._inputs
        # Rows of a constant would not be those of a batch.
        sent = [] if self._batching else [self._constant(self._choose(_DATATYPES), (2,))]
        optional = [each for each in sent if self._rng.integers(2)]
        operations = (
            self._identity,
            self._cast,
            self._add,
            self._reshape,
            self._split,
            self._concat,
            self._slice,
            self._where,
            self._if,
        )
        for _ in range(self._rng.integers(1, _MAX_OPERATIONS + 1)):
            self._choose(operations)(self._choose(self._values))
        named = self._some_of([*self._values[-4:], *self._inputs, *sent])
        # Further outputs of the graph, which the configuration leaves out.
        unnamed = [each for each in self._some_of(self._values) if each not in named]
        unnamed = unnamed if self._rng.integers(4) == 0 else []
        graph = Graph(partial(self._write, optional, [*named, *unnamed]), batching=self._batching)
        datatypes = {each.datatype for each in (*self._inputs, *optional, *named, *unnamed)}
        if datatypes >= {"BF16", "BYTES"}:
            return None
        return Case(
            self._name,
            "onnxruntime",
            self._batching,
            graph.build,
            tuple(self._declared(each) for each in (*self._inputs, *optional)),
            tuple(self._declared(each) for each in named),
            partial(self._request, seed, tuple(self._inputs), tuple(optional)),
            graph.call,
            # An integer can be infinite as a half.
            fits_json=all(each.datatype != "FP16" for each in self._values),
            optional=frozenset(each.name for each in optional),
        )

    def _write(self, optional: list[_Value], outputs: list[_Value], directory: Path) -> None:
        write(
            directory,
            self._nodes,
            [value(*each[:2], list(each.dims)) for each in (*self._inputs, *optional)],
            # What is empty is of a size that the graph does not know: no configuration says 0.
            [value(*each[:2], [dim or "none" for dim in each.dims]) for each in outputs],
            self._initializers,
        )

    def _request(
        self, seed: int, inputs: Sequence[_Value], optional: Sequence[_Value], number: int
    ) -> Arrays:
        rng = np.random.default_rng([seed, number])
        rows = 1 + number % 3 if self._batching else (1 + number) % 4
        given = [*inputs, *(each for each in optional if number % 2)]
        return {
            each.name: random_array(
                rng,
                each.datatype,
                tuple(dim if isinstance(dim, int) else rows for dim in each.dims),
            )
            for each in given
        }

    def _declared(self, each: _Value) -> tuple[str, str, tuple[int, ...]]:
        dims = each.dims[1:] if self._batching else each.dims
        sizes = (dim if isinstance(dim, int) and dim else -1 for dim in dims)
        return each.name, each.datatype, tuple(sizes)

    def _choose(self, among: Sequence[Any]) -> Any:
        return among[int(self._rng.integers(len(among)))]

    def _some_of(self, among: Sequence[_Value]) -> list[_Value]:
        """Return one to four, each once."""
        places = self._rng.permutation(len(among))[: self._rng.integers(1, 5)]
        return list(dict.fromkeys(among[place] for place in places))

    def _dims(self) -> tuple[int | str, ...]:
        sizes = tuple(int(size) for size in self._rng.integers(1, 5, self._rng.integers(1, 3)))
        return ("n", *sizes) if self._batching or self._rng.integers(2) else sizes

    def _axis(self, of: _Value) -> int | None:
        """Return an axis that a request's rows do not lie along."""
        axes = range(1 if self._batching else 0, len(of.dims))
        sized = [axis for axis in axes if isinstance(of.dims[axis], int)]
        return self._choose(sized) if sized else None

    def _made(
        self, operation: str, inputs: Sequence[str], *made: tuple[str, Dims], **more: Any
    ) -> None:
        names = [f"v{len(self._values) + place}" for place in range(len(made))]
        self._nodes.append(node(operation, list(inputs), names, **more))
        self._values += [_Value(name, *each) for name, each in zip(names, made, strict=True)]

    def _constant(self, datatype: str, dims: tuple[int, ...], array: Any = None) -> _Value:
        name = f"c{len(self._initializers)}"
        if array is None:
            array = random_array(self._rng, datatype, dims)
        self._initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return _Value(name, datatype, dims)

    def _numbers(self, *numbers: int) -> str:
        return self._constant("INT64", (len(numbers),), np.array(numbers, np.int64)).name

    def _like(self, first: _Value) -> _Value:
        """Return a value of the same datatype and shape, maybe the same value."""
        like: _Value = self._choose([each for each in self._values if each[1:] == first[1:]])
        return like

    def _identity(self, x: _Value) -> None:
        self._made("Identity", [x.name], x[1:])

    def _cast(self, x: _Value) -> None:
        if x.datatype in _CASTS:
            to = self._choose(_CASTS[x.datatype])
            self._made("Cast", [x.name], (to, x.dims), to=ONNX_TYPE[to])

    def _add(self, x: _Value) -> None:
        if x.datatype in _ADDED:
            other = self._choose((self._like(x), self._constant(x.datatype, (1,))))
            self._made("Add", [x.name, other.name], x[1:])

    def _reshape(self, x: _Value) -> None:
        first, *rest = x.dims
        size = prod(dim for dim in rest if isinstance(dim, int))
        shape, dims = self._choose(
            (
                ((0, size), (first, size)),
                ((0, 1, size), (first, 1, size)),
                ((0, size, 1), (first, size, 1)),
            )
        )
        self._made("Reshape", [x.name, self._numbers(*shape)], (x.datatype, dims))

    def _split(self, x: _Value) -> None:
        axis = self._axis(x)
        if axis is not None and (size := x.dims[axis]) and isinstance(size, int) and size > 1:
            sizes = (1, size - 1)
            parts = [(x.datatype, (*x.dims[:axis], each, *x.dims[axis + 1 :])) for each in sizes]
            self._made("Split", [x.name, self._numbers(*sizes)], *parts, axis=axis)

    def _concat(self, x: _Value) -> None:
        axis = self._axis(x)
        if axis is not None and isinstance(size := x.dims[axis], int):
            dims = (*x.dims[:axis], 2 * size, *x.dims[axis + 1 :])
            self._made("Concat", [x.name, self._like(x).name], (x.datatype, dims), axis=axis)

    def _slice(self, x: _Value) -> None:
        axis = self._axis(x)
        if axis is not None and isinstance(size := x.dims[axis], int):
            # From the second on, which can be nothing, or all backwards.
            start, end, step, left = self._choose(((1, size, 1, size - 1), (-1, -99, -1, size)))
            dims = (*x.dims[:axis], left, *x.dims[axis + 1 :])
            limits = [self._numbers(each) for each in (start, end, axis, step)]
            self._made("Slice", [x.name, *limits], (x.datatype, dims))

    def _where(self, x: _Value) -> None:
        conditions = [each for each in self._values if each[1:] == ("BOOL", x.dims)]
        condition = self._choose([*conditions, self._constant("BOOL", (1,))])
        self._made("Where", [condition.name, x.name, self._like(x).name], x[1:])

    def _if(self, x: _Value) -> None:
        if not self._batching and self._rng.integers(2):
            condition = _Value(f"C{len(self._inputs)}", "BOOL", (1,))
            self._inputs.append(condition)
        else:
            condition = self._constant("BOOL", (1,))
        branches = {}
        for branch, passed in (("then_branch", x), ("else_branch", self._like(x))):
            out = f"{branch}_{len(self._nodes)}"
            branches[branch] = helper.make_graph(
                [node("Identity", [passed.name], [out])],
                branch,
                [],
                [value(out, x.datatype, list(x.dims))],
            )
        self._made("If", [condition.name], x[1:], **branches)
