"""Batches of requests with different shapes: ragged inputs, padded inputs and batch inputs.

A ragged input is one row with the elements of all requests. A scattered output (`batch_output`) is
split by the requests' shapes. A padded input is as large as the batch's largest (CPU), or has the
smallest configured size that fits (GPU, which is faster with few shapes). Padding assumes that the
model's result does not depend on it, so it has to be configured.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nereid.core.errors import Internal, InvalidArgument, Unimplemented
from nereid.core.tensors.shapes import VARIABLE
from nereid.core.wire.messages import ErrorStatus, error_status_of
from nereid.model_config.padding import PADDING
from nereid_executor.batch.arrays import (
    check_datatype,
    check_outputs,
    encode_rows,
    flat_array,
    join_rows,
    make_layout,
)
from nereid_executor.batch.batch_inputs import batch_inputs_of
from nereid_executor.batch.responses import error_response

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nereid.core.tensors.tensors import Array
    from nereid.pb import model_config_pb2
    from nereid_executor.batch.arrays import GatheredBatch, Lend, Piece, Raw
    from nereid_executor.batch.request_plan import Column, Plan, Signature


def mixes_shapes(config: model_config_pb2.ModelConfig) -> bool:
    """Return whether a model's batches need this module."""
    return (
        any(tensor.allow_ragged_batch for tensor in config.input)
        or bool(config.batch_input)
        or bool(config.batch_output)
        or PADDING in config.parameters
    )


class _Scattered(NamedTuple):
    """An output that is split by the shapes of an input; -1 in dims stands for the input's size."""

    source: str
    dims: tuple[int, ...]


class _Cut(NamedTuple):
    """A dimension of an output that is padded like these dimensions of inputs (name, dimension)."""

    dim: int
    inputs: tuple[tuple[str, int], ...]


class MixedShapes:
    """Assembles the batches of one model whose requests may differ in shape."""

    def __init__(
        self,
        config: model_config_pb2.ModelConfig,
        signature: Signature,
        ragged_outputs: Mapping[str, str],
        *,
        pads_to_bucket: bool = True,
    ) -> None:
        """Read the configuration of a model; raise NereidError if it asks for the impossible.

        ragged_outputs: maps an output to the ragged input whose shapes split it (Capabilities).
        """
        self._batch_inputs = batch_inputs_of(config)
        self._scattered = _scattered_outputs(config, signature, ragged_outputs)
        self._buckets = signature.padding if pads_to_bucket else None
        self._values: dict[str, float] = {}
        self._cuts: dict[str, list[_Cut]] = {}
        if signature.padding is not None:
            for padded in signature.padding.sizes:
                self._values.update({tensor.name: tensor.value for tensor in padded.inputs})
                inputs = tuple((tensor.name, tensor.dim) for tensor in padded.inputs)
                for name, dim in padded.outputs:
                    self._cuts.setdefault(name, []).append(_Cut(dim, inputs))
        varying = any(VARIABLE in state.dims for state in config.sequence_batching.state)
        if varying and (signature.ragged or self._batch_inputs or self._scattered):
            raise Unimplemented(
                f"unable to load model '{config.name}', ragged batches of sequences with states of "
                "variable size are not supported"
            )

    def stack_inputs(self, signature: Signature, gathered: GatheredBatch) -> dict[str, Array]:
        """Return the model's input arrays by name, as arrays.stack_inputs() does."""
        first = gathered.first
        assert first is not None
        plans = _plans_of(gathered)
        inputs: dict[str, Array] = {}
        for column, raws in zip(first.columns, zip(*gathered.tensors, strict=True), strict=True):
            name = column.name
            if name in self._values:
                inputs[name] = self._pad(column, raws, plans, gathered)
                continue
            array = flat_array(column, join_rows(raws) if len(raws) > 1 else raws[0])
            if name not in signature.ragged:
                shape = (gathered.rows, *column.shape) if signature.batching else column.shape
                array = array.reshape(shape)
            inputs[name] = array
        for batch_input in self._batch_inputs:
            inputs.update(batch_input.arrays(plans))
        return inputs

    def _pad(
        self, column: Column, raws: Sequence[Raw], plans: Sequence[Plan], gathered: GatheredBatch
    ) -> Array:
        name = column.name
        padded = (gathered.rows, *self._padded_shape(column, plans))
        array = np.full(padded, self._values[name], column.dtype)
        row = 0
        for plan, raw in zip(plans, raws, strict=True):
            shape = plan.shapes[name]
            end = row + plan.rows
            place = (slice(row, end), *map(slice, shape))
            array[place] = flat_array(column, raw).reshape(plan.rows, *shape)
            row = end
        return array

    def _padded_shape(self, column: Column, plans: Sequence[Plan]) -> tuple[int, ...]:
        # In a dimension that is not padded, all requests have the same size.
        largest = tuple(map(max, zip(*(plan.shapes[column.name] for plan in plans), strict=True)))
        if self._buckets is None:
            return largest
        return self._buckets.padded_shapes({column.name: largest})[column.name]

    def split_outputs(
        self,
        signature: Signature,
        gathered: GatheredBatch,
        arrays: Sequence[Array],
        lend: Lend | None = None,
    ) -> list[Piece]:
        """Return the members' responses, as arrays.split_outputs() does."""
        if gathered.first is not None:
            self._check(signature, gathered, arrays)
        parts = [
            self._scatter(gathered, self._scattered[name], array, batching=signature.batching)
            if name in self._scattered
            else self._rows(gathered, name, array, batching=signature.batching)
            for name, array in zip(gathered.names, arrays, strict=True)
        ]
        pieces: list[Piece] = []
        for plan in gathered.outcomes:
            if isinstance(plan, ErrorStatus):
                pieces.append(error_response(plan))
                continue
            outputs = [next(part) for part in parts]
            shapes = tuple(
                array.shape[1:] if signature.batching else array.shape for array in outputs
            )
            key = (gathered.outputs, shapes)
            try:
                layout = plan.layouts.get(key) or make_layout(signature, plan, key)
            except InvalidArgument as error:
                pieces.append(error_response(error_status_of(error)))
                continue
            pieces.append(encode_rows(signature, plan, layout, outputs, lend))
        return pieces

    def _check(
        self, signature: Signature, gathered: GatheredBatch, arrays: Sequence[Array]
    ) -> None:
        if len(arrays) != len(gathered.names):
            # check_outputs() reports the error as for any other model.
            check_outputs(signature, gathered, arrays)
        regular = []
        for place, name in enumerate(gathered.names):
            if name not in self._scattered:
                regular.append(place)
                continue
            check_datatype(signature, signature.outputs[gathered.outputs[place]], arrays[place])
            self._check_elements(signature, gathered, name, arrays[place])
        rest = gathered._replace(
            outputs=tuple(gathered.outputs[place] for place in regular),
            names=[gathered.names[place] for place in regular],
        )
        check_outputs(signature, rest, [arrays[place] for place in regular])
        for place in regular:
            self._check_padding(signature, gathered, gathered.names[place], arrays[place])

    def _check_elements(
        self, signature: Signature, gathered: GatheredBatch, name: str, array: Array
    ) -> None:
        scattered = self._scattered[name]
        count = sum(
            prod(_scattered_shape(scattered, plan, batching=signature.batching))
            for plan in gathered.outcomes
            if not isinstance(plan, ErrorStatus)
        )
        if array.size != count:
            raise Internal(
                f"output '{name}' of model '{signature.model_name}' has {array.size} elements, but "
                f"the shapes of input '{scattered.source}' make {count}"
            )

    def _check_padding(
        self, signature: Signature, gathered: GatheredBatch, name: str, array: Array
    ) -> None:
        if name not in self._cuts:
            return
        assert gathered.first is not None
        plans = _plans_of(gathered)
        columns = {column.name: column for column in gathered.first.columns}
        for cut in self._cuts[name]:
            for source, source_dim in cut.inputs:
                if source not in columns:
                    continue
                padded = self._padded_shape(columns[source], plans)[source_dim]
                if array.shape[1:][cut.dim : cut.dim + 1] != (padded,):
                    raise Internal(
                        f"output '{name}' of model '{signature.model_name}' has not the size of "
                        f"the padded input '{source}' in dimension {cut.dim}, which is {padded}"
                    )

    @staticmethod
    def _scatter(
        gathered: GatheredBatch, scattered: _Scattered, array: Array, *, batching: bool
    ) -> Iterator[Array]:
        flat = array.reshape(-1)
        start = 0
        for plan in gathered.outcomes:
            if not isinstance(plan, ErrorStatus):
                shape = _scattered_shape(scattered, plan, batching=batching)
                end = start + prod(shape)
                yield flat[start:end].reshape(shape)
                start = end

    def _rows(
        self, gathered: GatheredBatch, name: str, array: Array, *, batching: bool
    ) -> Iterator[Array]:
        row = 0
        for plan in gathered.outcomes:
            if isinstance(plan, ErrorStatus):
                continue
            if not batching:
                yield array
                continue
            array = np.atleast_1d(array)
            place = [slice(None)] * array.ndim
            place[0] = slice(row, row + plan.rows)
            for cut in self._cuts.get(name, ()):
                for source, source_dim in cut.inputs:
                    if source in plan.shapes:
                        place[1 + cut.dim] = slice(plan.shapes[source][source_dim])
            yield array[tuple(place)]
            row += plan.rows


def _plans_of(gathered: GatheredBatch) -> list[Plan]:
    return [plan for plan in gathered.outcomes if not isinstance(plan, ErrorStatus)]


def _scattered_shape(scattered: _Scattered, plan: Plan, *, batching: bool) -> tuple[int, ...]:
    source = plan.shapes.get(scattered.source)
    if source is None:
        raise Internal(
            f"an output is split by the shapes of input '{scattered.source}', which the requests "
            "of the batch do not have"
        )
    shape = tuple(
        source[index] if dim == VARIABLE else dim for index, dim in enumerate(scattered.dims)
    )
    return (plan.rows, *shape) if batching else shape


def _scattered_outputs(
    config: model_config_pb2.ModelConfig, signature: Signature, ragged_outputs: Mapping[str, str]
) -> dict[str, _Scattered]:
    outputs = {spec.name: spec for spec in signature.outputs}
    asked = {
        name: batch_output.source_input[0]
        for batch_output in config.batch_output
        for name in batch_output.target_name
    }
    scattered = {}
    for name, source in {**ragged_outputs, **asked}.items():
        spec = signature.inputs[source]
        rank = len(spec.dims if spec.reshape is None else spec.reshape)
        output = outputs[name]
        dims = output.dims if output.reshape is None else output.reshape
        if any(dim == VARIABLE and index >= rank for index, dim in enumerate(dims)):
            raise InvalidArgument(
                f"unable to load model '{config.name}', batch output '{name}' has a variable "
                f"dimension that source input '{source}' does not have"
            )
        scattered[name] = _Scattered(source, tuple(dims))
    return scattered
