"""Padding of variable dimensions, so that requests of different sizes can run in one batch.

A parameter of the model switches this extension of Nereid's on:

    parameters { key: "padding" value { string_value: "ids[0]=1 mask[0] -> logits[0]: 16 32 64" } }

Dimensions are numbered as in dims. Inputs before the arrow are padded with the value after `=` (0
by default), to the smallest of the sizes after the colon that is large enough. Outputs after the
arrow are cut back. `;` separates dimensions. The scheduler uses this to queue requests, the
executor to assemble batches.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import BYTES, NAME_OF_CONFIG_NUMBER
from nereid.core.tensors.shapes import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nereid.pb.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

    _Tensor = ModelInput | ModelOutput
    _Shape = tuple[int, ...]

PADDING: Final = "padding"
_DIMENSION: Final = re.compile(r"(?P<name>\S+)\[(?P<dim>\d+)\](?:=(?P<value>[-+.\w]+))?")
_FORM: Final = "'INPUT[DIM]=VALUE ... -> OUTPUT[DIM] ...: SIZE SIZE ...; ...'"
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64"})


class PaddedInput(NamedTuple):
    """A dimension of an input, and the value with which it is padded."""

    name: str
    dim: int
    value: float


class PaddedSize(NamedTuple):
    """A size that dimensions of some inputs and outputs have in common within each request."""

    inputs: tuple[PaddedInput, ...]
    outputs: tuple[tuple[str, int], ...]
    # Padded sizes, ascending. A size above all of them is not padded.
    buckets: tuple[int, ...]

    def bucket(self, size: int) -> int:
        """Return the size after padding; a size above all buckets stays as it is."""
        index = bisect_left(self.buckets, size)
        return self.buckets[index] if index < len(self.buckets) else size


class Padding(NamedTuple):
    """All padded sizes of a model, and the model's name."""

    model_name: str
    sizes: tuple[PaddedSize, ...]

    def padded_shapes(self, shapes: Mapping[str, _Shape]) -> dict[str, _Shape]:
        """Return the padded shapes, without the batch dimension; may raise InvalidArgument."""
        return self._with_sizes(shapes, to_bucket=True)

    def open_shapes(self, shapes: Mapping[str, _Shape]) -> dict[str, _Shape]:
        """Return the shapes with -1 for padded dimensions; may raise InvalidArgument."""
        return self._with_sizes(shapes, to_bucket=False)

    def length(self, shapes: Mapping[str, _Shape]) -> int:
        """Return the size of the first padded dimension that a request has; 0 if it has none."""
        for tensor in self.sizes[0].inputs:
            if tensor.name in shapes:
                return shapes[tensor.name][tensor.dim]
        return 0

    def _with_sizes(self, shapes: Mapping[str, _Shape], *, to_bucket: bool) -> dict[str, _Shape]:
        padded = dict(shapes)
        for padded_size in self.sizes:
            first: PaddedInput | None = None
            for tensor in padded_size.inputs:
                if tensor.name not in shapes:
                    continue
                size = shapes[tensor.name][tensor.dim]
                first = first or tensor
                common = shapes[first.name][first.dim]
                if size != common:
                    raise InvalidArgument(
                        f"inputs '{first.name}' and '{tensor.name}' of model '{self.model_name}' "
                        f"are padded together and must have the same size in dimensions "
                        f"{first.dim} and {tensor.dim}, got {common} and {size}"
                    )
                shape = padded[tensor.name]
                new = padded_size.bucket(size) if to_bucket else VARIABLE
                padded[tensor.name] = (*shape[: tensor.dim], new, *shape[tensor.dim + 1 :])
        return padded


def count_padded_sizes(config: ModelConfig) -> int:
    """Return how many sizes the parameter separates by `;`; 0 without it."""
    if PADDING not in config.parameters:
        return 0
    return config.parameters[PADDING].string_value.count(";") + 1


def read_padding(config: ModelConfig) -> Padding | None:
    """Return a valid configuration's padding or `None`; may raise InvalidArgument."""
    if PADDING not in config.parameters:
        return None
    try:
        if config.HasField("ensemble_scheduling"):
            raise InvalidArgument("an ensemble runs no batches; its steps' models do")
        if config.max_batch_size < 1:
            raise InvalidArgument("the model does not support batching")
        text = config.parameters[PADDING].string_value
        padding = Padding(config.name, tuple(map(_padded_size, text.split(";"))))
        _check_dimensions("input", config.input, _input_dimensions(padding))
        _check_dimensions("output", config.output, _output_dimensions(padding))
        _check_inputs(config, padding)
        scattered = {name for output in config.batch_output for name in output.target_name}
        for name, _ in _output_dimensions(padding):
            if name in scattered:
                raise InvalidArgument(f"output '{name}' is a target of batch_output")
    except InvalidArgument as error:
        raise InvalidArgument(
            f"parameter '{PADDING}' of model '{config.name}': {error.message}"
        ) from None
    return padding


def _padded_size(text: str) -> PaddedSize:
    tensors, colon, sizes = text.rpartition(":")
    inputs, _, outputs = tensors.partition("->")
    if not colon or not inputs.split():
        raise InvalidArgument(f"expected {_FORM} but got '{text.strip()}'")
    try:
        buckets = tuple(map(int, sizes.replace(",", " ").split()))
    except ValueError:
        raise InvalidArgument(f"sizes must be whole numbers but are '{sizes.strip()}'") from None
    if not buckets or buckets[0] < 1 or any(one >= other for one, other in pairwise(buckets)):
        raise InvalidArgument(f"sizes must be positive and ascending but are '{sizes.strip()}'")
    cut: list[tuple[str, int]] = []
    for output in map(_dimension, outputs.split()):
        if output["value"] is not None:
            raise InvalidArgument(f"output '{output['name']}' cannot have a value")
        cut.append((output["name"], int(output["dim"])))
    padded = [
        PaddedInput(tensor["name"], int(tensor["dim"]), _number(tensor["value"] or "0"))
        for tensor in map(_dimension, inputs.split())
    ]
    return PaddedSize(tuple(padded), tuple(cut), buckets)


def _dimension(text: str) -> dict[str, str]:
    match = _DIMENSION.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"expected NAME[DIM] or NAME[DIM]=VALUE but got '{text}'")
    return match.groupdict()


def _number(text: str) -> float:
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    raise InvalidArgument(f"expected a number to pad with but got '{text}'")


def _input_dimensions(padding: Padding) -> list[tuple[str, int]]:
    return [(tensor.name, tensor.dim) for size in padding.sizes for tensor in size.inputs]


def _output_dimensions(padding: Padding) -> list[tuple[str, int]]:
    return [output for size in padding.sizes for output in size.outputs]


def _check_dimensions(
    role: str, tensors: Iterable[_Tensor], dimensions: list[tuple[str, int]]
) -> None:
    by_name = {tensor.name: tensor for tensor in tensors}
    seen: set[tuple[str, int]] = set()
    for name, dim in dimensions:
        tensor = by_name.get(name)
        if tensor is None:
            raise InvalidArgument(f"the model has no {role} '{name}'")
        if tensor.HasField("reshape"):
            raise InvalidArgument(f"{role} '{name}' has a reshape")
        if dim >= len(tensor.dims) or tensor.dims[dim] != VARIABLE:
            raise InvalidArgument(f"{role} '{name}' has no variable dimension {dim}")
        if (name, dim) in seen:
            raise InvalidArgument(f"dimension {dim} of {role} '{name}' is named more than once")
        seen.add((name, dim))


def _check_inputs(config: ModelConfig, padding: Padding) -> None:
    by_name = {tensor.name: tensor for tensor in config.input}
    values: dict[str, float] = {}
    for padded_size in padding.sizes:
        for name, _, value in padded_size.inputs:
            tensor = by_name[name]
            datatype = NAME_OF_CONFIG_NUMBER[tensor.data_type]
            if tensor.allow_ragged_batch:
                raise InvalidArgument(f"input '{name}' is ragged and needs no padding")
            if datatype == BYTES or tensor.is_shape_tensor:
                raise InvalidArgument(f"input '{name}' cannot be padded")
            if datatype not in _FLOATS and not (isinstance(value, int) and _fits(datatype, value)):
                raise InvalidArgument(
                    f"input '{name}' of type {datatype} cannot be padded with {value}"
                )
            if values.setdefault(name, value) != value:
                raise InvalidArgument(f"input '{name}' is padded with different values")


def _fits(datatype: str, value: int) -> bool:
    if datatype in {"BOOL", "BF16"}:
        # numpy has no BF16, so only 0 can be converted to it.
        return value == 0 or (datatype == "BOOL" and value == 1)
    bits = int(datatype.lstrip("UINT"))
    if datatype.startswith("U"):
        return 0 <= value < 1 << bits
    return -(1 << bits - 1) <= value < 1 << bits - 1
