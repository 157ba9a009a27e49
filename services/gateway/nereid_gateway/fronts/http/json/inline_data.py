"""Tensors' data in JSON, cut out of the rest, which clients repeat.

An array is a value by itself: cut out of a document and parsed alone it is what it was there, and
what is left, with a mark in its place, says of all such documents what it says of one. Knows JSON
and numbers; what a header says, infer_request knows.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import orjson

from nereid.core.tensors.shapes import bounded_count
from nereid_gateway.fronts.http.json import tensor_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_gateway.core.request_head import HeadInput

# As serialisers write it; there may be a space behind it.
_MEMBER: Final = b'"data":'
# Stands for data in what is remembered; nobody else can know it.
MARK: Final = secrets.token_hex(16)
QUOTED_MARK: Final = b'"%b"' % MARK.encode()


def cut(text: bytes) -> tuple[bytes, Sequence[bytes]]:
    """A header with marks in the place of its arrays of data, and these. Without strings, which
    may hold anything: a header that has some of them, or none at all, comes back whole.
    """
    at = text.find(_MEMBER)
    if at < 0:
        return text, ()
    pieces: list[bytes] = []
    arrays: list[bytes] = []
    begin = 0
    while at >= 0:
        start = at + len(_MEMBER)
        start += text.startswith(b" ", start)
        # Behind an array in an object there are braces or quotes, and in one of numbers neither.
        limit = text.find(b'"', start)
        limit = len(text) if limit < 0 else limit
        brace = text.find(b"}", start, limit)
        stop = text.rfind(b"]", start, limit if brace < 0 else brace) + 1
        if not stop or not text.startswith(b"[", start):
            return text, ()
        pieces.append(text[begin:start])
        arrays.append(text[start:stop])
        begin = stop
        at = text.find(_MEMBER, stop)
    pieces.append(text[begin:])
    return QUOTED_MARK.join(pieces), arrays


def is_cut(rest: bytes, count: int) -> bool:
    """Whether so many marks are in the place of the data of all inputs that have data, and nothing
    else. rest: of a document that was read as a request.
    """
    try:
        inputs = orjson.loads(rest)["inputs"]
        return [each["data"] for each in inputs if "data" in each] == [MARK] * count
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return False


def read(arrays: Sequence[bytes], inputs: Sequence[HeadInput]) -> list[bytes] | None:
    """The raw form of these inputs' data. None: some of it is no JSON by itself.

    Raises:
        NereidError: as tensor_data.to_raw.
    """
    raws = []
    for array, (name, datatype, shape) in zip(arrays, inputs, strict=True):
        try:
            data = orjson.loads(array)
        except orjson.JSONDecodeError:
            return None
        # Neither true nor false nor null: what is not nested is numbers.
        flat = array.find(b"[", 1) < 0 and array.find(b"r") < 0 and array.find(b"l") < 0
        if flat and len(data) == bounded_count(shape):
            raw = tensor_data.pack_numbers(data, datatype)
            if raw is not None:
                raws.append(raw)
                continue
        raws.append(tensor_data.to_raw(data, name, datatype, shape))
    return raws
