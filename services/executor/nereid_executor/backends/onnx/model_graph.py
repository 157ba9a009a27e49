"""Facts about an ONNX file that ONNX Runtime's Python API does not tell. Weights are not read."""

from __future__ import annotations

import mmap
import re
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.core.wire.varint import decode_varint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_Buffer = mmap.mmap | bytes

MODEL_GRAPH: Final = 7
_GRAPH_TENSORS: Final = frozenset({11, 12})  # input, output: ValueInfoProto
_MODEL_FUNCTIONS: Final = 25
_FUNCTION_NODE: Final = 7
GRAPH_NODE: Final = 1
_NODE_TYPE: Final = 4
NODE_ATTRIBUTE: Final = 5
_NODE_DOMAIN: Final = 7
ATTRIBUTE_GRAPHS: Final = frozenset({6, 11})  # g, graphs
_GRAPH_INITIALIZER: Final = 5
_GRAPH_SPARSE_INITIALIZER: Final = 15
_ATTRIBUTE_TENSORS: Final = frozenset({5, 10})  # t, tensors
_ATTRIBUTE_SPARSE_TENSORS: Final = frozenset({22, 23})
_SPARSE_PARTS: Final = frozenset({1, 2})  # values, indices
_TENSOR_EXTERNAL_DATA: Final = 13
_DEFAULT_DOMAINS: Final = frozenset({b"", b"ai.onnx"})
# Operators whose results depend on the content of strings, beyond whether strings are equal.
_INSPECTING: Final = re.compile(rb"Regex|String(?!Concat)|^TfIdfVectorizer$|^Unique$")
# Operators with this prefix scale a tensor by the range of all its values.
_DYNAMIC_QUANTIZATION: Final = b"DynamicQuantize"
VALUE_NAME: Final = 1
_VALUE_TYPE: Final = 2
_TYPE_TENSOR: Final = 1
_TENSOR_SHAPE: Final = 2

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def unranked_tensors(path: Path) -> frozenset[str]:
    """Return the names of graph inputs and outputs without a shape; empty for an invalid file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        names: set[str] = set()
        for number, start, end in _fields(data, 0, len(data)):
            if number == MODEL_GRAPH:
                names.update(_unranked_in_graph(data, start, end))
        return frozenset(names)


def only_moves_strings(path: Path) -> bool:
    """Return whether the graph's operators only move, join and compare strings."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        fields = list(_fields(data, 0, len(data)))
        # A model function may contain any operator.
        return not any(number == _MODEL_FUNCTIONS for number, *_ in fields) and all(
            _moves_strings(data, *span) for number, *span in fields if number == MODEL_GRAPH
        )


def _moves_strings(data: _Buffer, start: int, end: int) -> bool:
    for number, *span in _fields(data, start, end):
        if number != GRAPH_NODE:
            continue
        kind, domain = b"", b""
        for part, *part_span in _fields(data, *span):
            if part == _NODE_TYPE:
                kind = data[slice(*part_span)]
            elif part == _NODE_DOMAIN:
                domain = data[slice(*part_span)]
            elif part == NODE_ATTRIBUTE and not all(
                _moves_strings(data, *inner)
                for field, *inner in _fields(data, *part_span)
                if field in ATTRIBUTE_GRAPHS
            ):
                return False
        if domain not in _DEFAULT_DOMAINS or _INSPECTING.search(kind):
            return False
    return True


def quantizes_by_batch(path: Path) -> bool:
    """Return whether an operator derives a tensor's scale from all rows of its batch."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for number, *span in _fields(data, 0, len(data)):
            part = {MODEL_GRAPH: GRAPH_NODE, _MODEL_FUNCTIONS: _FUNCTION_NODE}.get(number)
            if part is not None and _quantizes_by_batch(data, part, *span):
                return True
    return False


def _quantizes_by_batch(data: _Buffer, node: int, start: int, end: int) -> bool:
    for number, *span in _fields(data, start, end):
        if number != node:
            continue
        for part, *part_span in _fields(data, *span):
            if part == _NODE_TYPE and data[slice(*part_span)].startswith(_DYNAMIC_QUANTIZATION):
                return True
            if part == NODE_ATTRIBUTE and any(
                _quantizes_by_batch(data, GRAPH_NODE, *inner)
                for field, *inner in _fields(data, *part_span)
                if field in ATTRIBUTE_GRAPHS
            ):
                return True
    return False


def has_external_data(path: Path) -> bool:
    """Return whether a tensor is in another file; False if the file is not ONNX."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return any(
                number == _TENSOR_EXTERNAL_DATA
                for tensor in _tensors_in_model(data)
                for number, *_ in _fields(data, *tensor)
            )
    except (DecodeError, ValueError):
        return False


def _tensors_in_model(data: _Buffer) -> Iterator[tuple[int, int]]:
    for number, *span in _fields(data, 0, len(data)):
        if number == MODEL_GRAPH:
            yield from _tensors_in_graph(data, *span)
        elif number == _MODEL_FUNCTIONS:
            for part, *node in _fields(data, *span):
                if part == _FUNCTION_NODE:
                    yield from _tensors_in_node(data, *node)


def _tensors_in_graph(data: _Buffer, start: int, end: int) -> Iterator[tuple[int, int]]:
    for number, *span in _fields(data, start, end):
        if number == GRAPH_NODE:
            yield from _tensors_in_node(data, *span)
        elif number == _GRAPH_INITIALIZER:
            yield span[0], span[1]
        elif number == _GRAPH_SPARSE_INITIALIZER:
            yield from _sparse_parts(data, *span)


def _tensors_in_node(data: _Buffer, start: int, end: int) -> Iterator[tuple[int, int]]:
    for number, *span in _fields(data, start, end):
        if number != NODE_ATTRIBUTE:
            continue
        for part, *inner in _fields(data, *span):
            if part in _ATTRIBUTE_TENSORS:
                yield inner[0], inner[1]
            elif part in ATTRIBUTE_GRAPHS:
                yield from _tensors_in_graph(data, *inner)
            elif part in _ATTRIBUTE_SPARSE_TENSORS:
                yield from _sparse_parts(data, *inner)


def _sparse_parts(data: _Buffer, start: int, end: int) -> Iterator[tuple[int, int]]:
    for number, *span in _fields(data, start, end):
        if number in _SPARSE_PARTS:
            yield span[0], span[1]


def _unranked_in_graph(data: _Buffer, start: int, end: int) -> Iterator[str]:
    for number, *span in _fields(data, start, end):
        if number not in _GRAPH_TENSORS:
            continue
        name, ranked = "", False
        for part, part_start, part_end in _fields(data, *span):
            if part == VALUE_NAME:
                name = data[part_start:part_end].decode()
            elif part == _VALUE_TYPE:
                ranked = _has_shape(data, part_start, part_end)
        if not ranked:
            yield name


def _has_shape(data: _Buffer, start: int, end: int) -> bool:
    return any(
        number == _TYPE_TENSOR and any(one[0] == _TENSOR_SHAPE for one in _fields(data, *span))
        for number, *span in _fields(data, start, end)
    )


def _fields(data: _Buffer, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    for number, _, start, stop in raw_fields(data, position, end):
        if start:
            yield number, start, stop


def raw_fields(data: _Buffer, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield each field's number, start of the tag, start of the content, and end.

    If a field is not length-delimited, the start of the content is 0.
    """
    while position < end:
        begin = position
        tag, position = decode_varint(data, position)
        kind, start = tag & 7, 0
        if kind == _DELIMITED:
            length, start = decode_varint(data, position)
            position = start + length
        elif kind == _VARINT:
            _, position = decode_varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:
            return
        yield tag >> 3, begin, start, position
