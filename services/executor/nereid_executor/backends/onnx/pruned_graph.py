"""ONNX models without the nodes that only unwanted outputs need.

ONNX Runtime computes every output of a graph, even if a run requests only some. A model with
external weights behind links may be refused; it is then loaded from its file.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from nereid.core.wire.varint import encode_varint
from nereid_executor.backends.onnx.model_graph import (
    ATTRIBUTE_GRAPHS,
    GRAPH_NODE,
    MODEL_GRAPH,
    NODE_ATTRIBUTE,
    VALUE_NAME,
    raw_fields,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

_GRAPH_INITIALIZER: Final = 5
_GRAPH_OUTPUT: Final = 12
_NODE_INPUT: Final = 1
_NODE_OUTPUT: Final = 2
_TENSOR_NAME: Final = 8
_DELIMITED: Final = 2


class _Node(NamedTuple):
    begin: int
    # The inputs include outside values that graphs within the node use.
    inputs: set[bytes]
    outputs: list[bytes]


def prune_outputs(path: Path, wanted: Collection[str]) -> bytes | None:
    """Return a model with only these outputs and their nodes; `None` if that is impossible.

    External weights are found relative to the original file.
    """
    try:
        return _prune(path, wanted)
    except (DecodeError, ValueError):
        return None


def _prune(path: Path, wanted: Collection[str]) -> bytes | None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        fields = list(raw_fields(data, 0, len(data)))
        graphs = [(start, end) for number, _, start, end in fields if number == MODEL_GRAPH]
        if len(graphs) != 1:
            return None
        pruned = _prune_graph(data, *graphs[0], {name.encode() for name in wanted})
        if pruned is None:
            return None
        parts = [
            _delimited(MODEL_GRAPH, pruned) if number == MODEL_GRAPH else data[begin:end]
            for number, begin, _, end in fields
        ]
        return b"".join(parts)


def _prune_graph(data: mmap.mmap, start: int, end: int, wanted: set[bytes]) -> bytes | None:
    fields = list(raw_fields(data, start, end))
    outputs = {
        _text(data, at, stop, VALUE_NAME)
        for number, _, at, stop in fields
        if number == _GRAPH_OUTPUT
    }
    if not wanted <= outputs:
        return None
    nodes = [
        _node(data, begin, at, stop) for number, begin, at, stop in fields if number == GRAPH_NODE
    ]
    producers = {output: node for node in nodes for output in node.outputs}
    needed, kept, pending = set(wanted), set(), list(wanted)
    while pending:
        node = producers.get(pending.pop())
        if node is not None and node.begin not in kept:
            kept.add(node.begin)
            pending += node.inputs - needed
            needed |= node.inputs
    if len(kept) == len(nodes):
        return None
    parts = []
    for number, begin, at, stop in fields:
        if (
            (number == GRAPH_NODE and begin not in kept)
            or (number == _GRAPH_OUTPUT and _text(data, at, stop, VALUE_NAME) not in wanted)
            or (number == _GRAPH_INITIALIZER and _text(data, at, stop, _TENSOR_NAME) not in needed)
        ):
            continue
        parts.append(data[begin:stop])
    return b"".join(parts)


def _node(data: mmap.mmap, begin: int, start: int, end: int) -> _Node:
    inputs, outputs = set(), []
    for number, _, at, stop in raw_fields(data, start, end):
        if number == _NODE_INPUT:
            inputs.add(data[at:stop])
        elif number == _NODE_OUTPUT:
            outputs.append(data[at:stop])
        elif number == NODE_ATTRIBUTE:
            inputs.update(_taken_by_graphs(data, at, stop))
    return _Node(begin, inputs, outputs)


def _taken_by_graphs(data: mmap.mmap, start: int, end: int) -> Iterator[bytes]:
    for number, _, at, stop in raw_fields(data, start, end):
        if number not in ATTRIBUTE_GRAPHS or not at:
            continue
        for part, begin, inner, inner_end in raw_fields(data, at, stop):
            if part == GRAPH_NODE:
                yield from _node(data, begin, inner, inner_end).inputs
            elif part == _GRAPH_OUTPUT:
                yield _text(data, inner, inner_end, VALUE_NAME)


def _text(data: mmap.mmap, start: int, end: int, wanted: int) -> bytes:
    for number, _, at, stop in raw_fields(data, start, end):
        if number == wanted and at:
            return data[at:stop]
    return b""


def _delimited(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | _DELIMITED) + encode_varint(len(content)) + content
