"""Makes tensors as raw bytes: with made-up values, or from values that a user wrote."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.tensors.datatypes import BYTES, SIZE_BYTES
from nereid.core.tensors.shapes import VARIABLE, format_shape, shape_fits
from nereid.core.tensors.tensors import NUMPY_TYPE, Array
from nereid_perf.inputs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_perf.inputs.plan import InputPlan, ModelPlan
    from nereid_perf.inputs.signature import TensorSpec

# Requests over HTTP or gRPC cannot be larger.
MAX_TENSOR_BYTES: Final = 1 << 31
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64", "BF16"})
_LETTERS: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", np.uint8
)
_MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a request; only joined steps have the batch dimension in `shape`."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes


class TensorMaker:
    """Makes up tensors; with the same seed, every process makes the same tensors."""

    def __init__(self, plan: InputPlan, model: ModelPlan, *, zeros: bool = False) -> None:
        self._zeros = zeros
        self._integers = plan.random_integers
        self._string_length = model.string_length
        self._string_data = model.string_data
        self._random = np.random.default_rng([plan.seed, zlib.crc32(model.name.encode())])

    def make(
        self, spec: TensorSpec, shape: tuple[int, ...], string_length: int | None = None
    ) -> Tensor:
        """Return a tensor of this shape; raise InputError if it would be too large."""
        count = prod(shape)
        length = self._string_length if string_length is None else string_length
        size = count * SIZE_BYTES.get(spec.datatype, 4 + length)
        if size > MAX_TENSOR_BYTES:
            raise InputError(
                f"input '{spec.name}' of shape {format_shape(shape)} takes {size} bytes, more "
                f"than the {MAX_TENSOR_BYTES} that a request can have: give it a smaller --shape"
            )
        if spec.datatype == BYTES:
            return Tensor(spec.name, BYTES, shape, join_bytes(self._strings(count, length)))
        return Tensor(spec.name, spec.datatype, shape, self._numbers(spec.datatype, count))

    def _strings(self, count: int, length: int) -> list[bytes]:
        if self._string_data is not None:
            return [self._string_data.encode()] * count
        if self._zeros:
            return [b"0" * length] * count
        letters = _LETTERS[self._random.integers(0, len(_LETTERS), count * length)].tobytes()
        return [letters[at * length : (at + 1) * length] for at in range(count)]

    def _numbers(self, datatype: str, count: int) -> bytes:
        dtype = NUMPY_TYPE[datatype]
        if self._zeros:
            return bytes(count * dtype.itemsize)
        if datatype == "BOOL":
            return self._random.integers(0, 2, count, np.uint8).tobytes()
        if datatype == "FP64":
            return self._random.random(count).astype(dtype).tobytes()
        if datatype in _FLOATS:
            return _narrowed(self._random.random(count, np.float32), datatype).tobytes()
        bounds = np.iinfo(dtype)
        low, high = (min(max(bound, bounds.min), bounds.max) for bound in self._integers)
        numbers = self._random.integers(low, high, count, dtype.newbyteorder("="), endpoint=True)
        return numbers.astype(dtype).tobytes()


def dims_of(spec: TensorSpec, option: tuple[int, ...] | None, model: str) -> tuple[int, ...]:
    """Return an input's dimensions by --shape, or else the metadata's. May raise InputError."""
    if option is None:
        if VARIABLE in spec.dims:
            example = ",".join(str(1 if dim == VARIABLE else dim) for dim in spec.dims)
            raise InputError(
                f"input '{spec.name}' of model '{model}' has the variable shape "
                f"{format_shape(spec.dims)}: give its sizes, as in --shape {spec.name}:{example}"
            )
        return spec.dims
    if not shape_fits(option, spec.dims):
        raise InputError(
            f"--shape {spec.name}:{','.join(map(str, option))} does not fit model '{model}', whose "
            f"input has the shape {format_shape(spec.dims)} (without the batch dimension)"
        )
    return option


def raw_of(values: Sequence[Any], datatype: str) -> tuple[bytes, int]:
    """Return the raw bytes and the number of a JSON array's elements. May raise ValueError."""
    flat = _flattened(values)
    if datatype == BYTES:
        for index, element in enumerate(flat):
            if not isinstance(element, str):
                wrong = _kind(element)
                raise ValueError(f"element {index}: expected a string, found {wrong}")  # noqa: TRY004 - of the value
        try:
            return join_bytes(flat), len(flat)
        except UnicodeEncodeError:
            raise ValueError("a string has half of a surrogate pair: give it as b64") from None
    allowed: tuple[type, ...] = (int, float) if datatype in _FLOATS else (int,)
    if datatype == "BOOL":
        return _booleans(flat), len(flat)
    if not set(map(type, flat)) <= set(allowed):
        index, wrong = next((i, v) for i, v in enumerate(flat) if type(v) not in allowed)
        wanted = "a number" if datatype in _FLOATS else "a whole number"
        raise ValueError(f"element {index}: expected {wanted}, found {_kind(wrong)}")
    if datatype in _FLOATS:
        return _floats(flat, datatype), len(flat)
    bounds = np.iinfo(NUMPY_TYPE[datatype])
    if flat and not bounds.min <= min(flat) <= max(flat) <= bounds.max:
        index = next(i for i, v in enumerate(flat) if not bounds.min <= v <= bounds.max)
        raise ValueError(
            f"element {index}: {flat[index]} is no {datatype}, which has {bounds.min} to "
            f"{bounds.max}"
        )
    return np.array(flat, NUMPY_TYPE[datatype]).tobytes(), len(flat)


def _booleans(flat: list[Any]) -> bytes:
    for index, element in enumerate(flat):
        if not isinstance(element, int) or element not in (0, 1):
            raise ValueError(f"element {index}: expected true or false, found {_kind(element)}")
    return bytes(flat)


def _floats(flat: list[Any], datatype: str) -> bytes:
    try:
        wide = np.array(flat, np.float64)
    except OverflowError:
        raise ValueError(f"a number is too large for {datatype}") from None
    with np.errstate(over="ignore"):
        narrow = _narrowed(wide, datatype)
        lost = np.isinf(widened(narrow, datatype)) & np.isfinite(wide)
    if lost.any():
        index = int(lost.argmax())
        raise ValueError(f"element {index}: {flat[index]} is too large for {datatype}")
    return narrow.tobytes()


def _narrowed(numbers: Array, datatype: str) -> Array:
    if datatype != "BF16":
        return numbers.astype(NUMPY_TYPE[datatype])
    bits = numbers.astype("<f4").view("<u4")
    # Round to the nearest BF16, ties to even. NaN and infinity just keep their upper bits.
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), (bits >> 16) | 0x40, rounded).astype("<u2")


def widened(numbers: Array, datatype: str) -> Array:
    """Return floats in a type that numpy can compare; BF16 numbers come as uint16."""
    if datatype != "BF16":
        return numbers
    return (numbers.astype("<u4") << 16).view("<f4")


def _flattened(values: Sequence[Any]) -> list[Any]:
    flat = list(values)
    for _ in range(_MAX_DEPTH):
        if list not in set(map(type, flat)):
            return flat
        flat = [
            inner
            for element in flat
            for inner in (element if type(element) is list else (element,))
        ]
    raise ValueError(f"expected arrays nested at most {_MAX_DEPTH} deep")


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
        case dict():
            return "an object"
        case str():
            return f"the string {value[:40]!r}"
        case _:
            return str(value)[:40]
