"""Converts tensor data from JSON to raw bytes and back, with Triton's rules.

Data may be nested in any way, up to 99 deep. Integers out of range wrap. FP16 and BF16 have no JSON
form.
"""

# layout: compiled

from __future__ import annotations

import io
import struct
from itertools import chain
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Never

import orjson
from orjson import Fragment

from nereid.core.errors import Internal, InvalidArgument
from nereid.core.tensors.byte_elements import join_bytes, split_bytes, split_in_slices
from nereid.core.tensors.datatypes import BYTES, SIZE_BYTES
from nereid.core.tensors.shapes import MANY_ELEMENTS, bounded_count, format_shape
from nereid_gateway.fronts.http.json import parser

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SIGNED: Final = frozenset({"INT8", "INT16", "INT32", "INT64"})
_UNSIGNED: Final = frozenset({"UINT8", "UINT16", "UINT32", "UINT64"})
_FLOAT: Final = frozenset({"FP32", "FP64"})
BINARY_ONLY: Final = frozenset({"FP16", "BF16"})
_INT: Final = {int}
_LIST: Final = {list}
# struct refuses integers out of range. A double that FP32 cannot hold becomes infinite, as on
# Triton.
_CODES: Final = {
    "BOOL": "?",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP32": "f",
    "FP64": "d",
}
_NUMBER: Final = {int, float}
# Bytes of an output written at once: a multiple of all element sizes.
_SLICE_BYTES: Final = 65_536
# Number of lists around an element that Triton refuses.
_MAX_DEPTH: Final = 100
# The largest INT64, by which Triton counts elements and bytes.
MAX_COUNT: Final = (1 << 63) - 1
_WIDEST_BYTES: Final = 8
# Strings encoded at once.
_PIECE: Final = 65536


def to_raw(
    data: Any,
    name: str,
    datatype: str,
    shape: Sequence[int],
    max_bytes: int = MAX_COUNT,
) -> bytes:
    """Return the raw form of the `data` member of an input.

    Raises Internal if the data does not fit datatype and shape. Raises InvalidArgument if the
    datatype is unknown or has no JSON form, 64 bits do not count the shape, or the raw form has
    more than max_bytes.
    """
    count = bounded_count(shape)
    if not count:
        # Triton ignores the data of a tensor without elements.
        return b""
    if count > MAX_COUNT // _WIDEST_BYTES:
        _check_overflow(name, datatype, shape, count)
    if type(data) is not list:
        parser.refuse_kind("array", "data")
    types = set(map(type, data))
    if list in types:
        data = _flatten(data, datatype)
        types = set(map(type, data))
    if datatype == BYTES:
        if types - {str}:
            raise Internal(
                "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
            )
        pieces = (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
        raw = b"".join(join_bytes(_encoded(piece)) for piece in pieces)
        _check_size(len(raw), name, max_bytes)
        return raw
    _check_size(count * SIZE_BYTES.get(datatype, 0), name, max_bytes)
    if len(data) != count:
        if not shape:
            # The scheduler first has to check whether the model accepts a scalar.
            return b""
        wanted = data[: min(count, len(data))]
        # An element of a wrong kind is reported before a wrong number of elements.
        _numbers(wanted, set(map(type, wanted)), name, datatype)
        if len(data) < count:
            raise Internal("Failed to parse 'data' field: shape does not match true shape")
        raise Internal("Unable to parse 'data': Shape does not match true shape of 'data' field")
    return _numbers(data, types, name, datatype)


def _check_size(size_bytes: int, name: str, max_bytes: int) -> None:
    """Raise InvalidArgument if the raw form of an input is too large."""
    if size_bytes > max_bytes:
        raise InvalidArgument(
            f"JSON input '{name}' has a byte_size ({size_bytes} bytes) that exceeds the maximum"
            f" allowed value of {max_bytes} bytes. Use --http-max-input-size to increase the limit."
        )


def _check_overflow(name: str, datatype: str, shape: Sequence[int], count: int) -> None:
    if count == MANY_ELEMENTS:
        raise InvalidArgument(
            f"invalid shape for input '{name}': shape {format_shape(shape)} causes total element"
            f" count to exceed maximum size of {MAX_COUNT}"
        )
    width = SIZE_BYTES.get(datatype, 0)
    if count * width > MAX_COUNT:
        raise InvalidArgument(
            f"byte size overflow for input '{name}': element count ({count}) * data type size"
            f" ({width}) exceeds maximum allowed size ({MAX_COUNT})"
        )


def _numbers(data: list[Any], types: set[type], name: str, datatype: str) -> bytes:
    if datatype in _FLOAT:
        if types - _NUMBER:
            raise Internal("Unable to parse 'data': attempt to access JSON non-number as double")
        return struct.pack(f"{len(data)}{_CODES[datatype]}", *data)
    if datatype in _SIGNED:
        return _integers(data, types, datatype, "signed-integer")
    if datatype in _UNSIGNED:
        return _integers(data, types, datatype, "unsigned-integer")
    if datatype == "BOOL":
        if types - {bool}:
            parser.refuse_kind("boolean", "data")
        return bytes(data)
    if datatype not in BINARY_ONLY:
        raise InvalidArgument(f"invalid datatype for input {name}")
    if data:
        refuse_half_precision(name, datatype)
    return b""


def refuse_half_precision(name: str, datatype: str) -> Never:
    """Raise the error for an input whose datatype has no JSON form."""
    raise InvalidArgument(
        f"receiving {datatype} data via JSON is not supported."
        f" Please use the binary data format for input {name}"
    )


def pack_numbers(data: list[Any], datatype: str) -> bytes | None:
    """Return a flat list of numbers as raw bytes, or None if to_raw has to convert it.

    The list must fit the shape and have no nested list, boolean or null.
    """
    code = _CODES.get(datatype)
    if code is None or code == "?":
        return None
    try:
        return struct.pack(f"{len(data)}{code}", *data)
    except struct.error:
        return None


def _integers(data: list[Any], types: set[type], datatype: str, kind: str) -> bytes:
    if types - _INT:
        parser.refuse_kind(kind, "data")
    if (raw := pack_numbers(data, datatype)) is not None:
        return raw
    # A gateway starts without NumPy (core.deferred_imports).
    import numpy as np  # noqa: PLC0415

    from nereid.core.tensors.tensors import NUMPY_TYPE  # noqa: PLC0415

    try:
        wide = np.array(data, np.int64 if kind == "signed-integer" else np.uint64)
    except OverflowError:
        parser.refuse_kind(kind, "data")
    return wide.astype(NUMPY_TYPE[datatype]).tobytes()


def _encoded(texts: list[str]) -> list[bytes]:
    try:
        return list(map(str.encode, texts))
    except UnicodeEncodeError:
        return list(map(parser.utf8, texts))


def _flatten(data: list[Any], datatype: str) -> list[Any]:
    """Return the leaves of nested lists; raise InvalidArgument if the lists are nested too deep."""
    depth = 1
    while (types := set(map(type, data))) == _LIST:
        # Regular nesting is flattened level by level.
        data = list(chain.from_iterable(data))
        depth += 1
        if depth >= _MAX_DEPTH and data:
            _refuse_depth(datatype)
    if list not in types:
        return data
    flat: list[Any] = []
    pending = [iter(data)]
    while pending:
        for item in pending[-1]:
            if type(item) is list:
                if depth + len(pending) >= _MAX_DEPTH and item:
                    _refuse_depth(datatype)
                pending.append(iter(item))
                break
            flat.append(item)
        else:
            pending.pop()
    return flat


def _refuse_depth(datatype: str) -> Never:
    place = "" if datatype == BYTES else "Unable to parse 'data': "
    raise InvalidArgument(f"{place}JSON nesting depth exceeds maximum allowed limit ({_MAX_DEPTH})")


def from_raw(raw: bytes, datatype: str, *, scalar: bool = False) -> Any:
    """Return an output's elements as a list, or as a Fragment if strict JSON cannot hold them.

    scalar: return a single element without its list. Raises InvalidArgument if the datatype has no
    JSON form, as on Triton only after the model has run.
    """
    _check_has_json(datatype)
    elements = split_bytes(raw) if datatype == BYTES else raw
    values, strict = _values(elements, datatype)
    value = values[0] if scalar and len(values) == 1 else values
    return value if strict else Fragment(parser.write(value))


class OutputTexts:
    """Writes the outputs of a response in slices, because orjson crashes if it gets no memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = self._left_bytes = max_bytes

    def from_raw(self, raw: bytes, datatype: str, *, scalar: bool = False) -> Any:
        """Return the elements of an output. Raises InvalidArgument if the texts are too large."""
        _check_has_json(datatype)
        text = io.BytesIO()
        count, separator = 0, b"["
        for piece in _slices(raw, datatype):
            values, strict = _values(piece, datatype)
            text.write(separator)
            if len(values) == 1 and type(values[0]) is str:
                self._write_string(text, values[0])
            else:
                written = orjson.dumps(values) if strict else parser.write(values)
                text.write(memoryview(written)[1:-1])
            count, separator = count + len(values), b","
            self.__check_size(text)
        text.write(b"]" if count else b"[]")
        self._left_bytes -= text.tell()
        content = text.getvalue()
        return Fragment(content[1:-1] if scalar and count == 1 else content)

    def _write_string(self, text: io.BytesIO, value: str) -> None:
        text.write(b'"')
        for at in range(0, len(value), _SLICE_BYTES):
            text.write(memoryview(parser.write(value[at : at + _SLICE_BYTES]))[1:-1])
            self.__check_size(text)
        text.write(b'"')

    def __check_size(self, text: io.BytesIO) -> None:
        if text.tell() > self._left_bytes:
            raise InvalidArgument(
                f"the outputs take more than {self._max_bytes} bytes as JSON. Please use the binary"
                " data format for output, or --decoder-memory-bytes to increase the limit.",
                accepted=True,
            )


def _check_has_json(datatype: str) -> None:
    if datatype in BINARY_ONLY:
        raise InvalidArgument(
            f"sending {datatype} data via JSON is not supported."
            " Please use the binary data format for output",
            accepted=True,
        )


def _slices(raw: bytes, datatype: str) -> Iterator[Any]:
    if datatype != BYTES:
        view = memoryview(raw)
        for at in range(0, len(raw), _SLICE_BYTES):
            yield view[at : at + _SLICE_BYTES]
        return
    for elements in split_in_slices(raw, _SLICE_BYTES):
        # Only the last string of a slice may be longer than a slice. It becomes a slice of its own.
        last = elements.pop() if len(elements[-1]) > _SLICE_BYTES else None
        if elements:
            yield elements
        if last is not None:
            yield [last]


def _values(elements: Any, datatype: str) -> tuple[list[Any], bool]:
    if datatype == BYTES:
        try:
            return [element.decode() for element in elements], True
        except UnicodeDecodeError:
            return [element.decode("utf-8", "surrogateescape") for element in elements], False
    view: Any = memoryview(elements).cast("B")
    values: list[Any] = view.cast(_CODES[datatype]).tolist()
    # A finite sum shows cheaply that all values are finite. Otherwise, each value is checked.
    strict = datatype not in _FLOAT or isfinite(sum(values)) or all(map(isfinite, values))
    return values, strict
