"""Separation of the data of tensors from the rest of a JSON header, which clients repeat.

An array has the same value whether it is parsed alone or within its document. So arrays are cut out
and parsed alone. The rest has a mark in place of each array, and means the same for all documents
that share it. This module knows JSON and numbers; infer_request knows what a header says.
"""

# layout: compiled

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import orjson

from nereid.core.tensors.shapes import bounded_count
from nereid_gateway.fronts.http.json import tensor_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_gateway.core.request_head import HeadInput

# Name of the member as serialisers write it. One space may follow.
_MEMBER: Final = b'"data":'
# Mark that replaces data in cached headers. It is random, so that no client can send it.
MARK: Final = secrets.token_hex(16)
QUOTED_MARK: Final = b'"%b"' % MARK.encode()


def cut(text: bytes) -> tuple[bytes, Sequence[bytes]]:
    """Return a header that has marks in place of its arrays of data, and the arrays.

    Arrays with strings are not cut, because strings may contain anything. A header with such an
    array, or without data, is returned unchanged.
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
        # An array of numbers contains neither braces nor quotes. So it ends before the next brace
        # or quote, which belongs to the enclosing object.
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
    """Return whether the marks stand for all data of inputs, and for nothing else.

    rest: the text with marks, from cut(). The document without marks is a valid request. count: the
    number of marks that cut() has inserted.
    """
    try:
        inputs = orjson.loads(rest)["inputs"]
        return [tensor["data"] for tensor in inputs if "data" in tensor] == [MARK] * count
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return False


def read(arrays: Sequence[bytes], inputs: Sequence[HeadInput]) -> list[bytes] | None:
    """Return the inputs' data in raw form, or None if an array is not valid JSON by itself.

    Raises:
        NereidError: the data is wrong; see tensor_data.to_raw.
    """
    raws = []
    for array, (name, datatype, shape) in zip(arrays, inputs, strict=True):
        try:
            data = orjson.loads(array)
        except orjson.JSONDecodeError:
            return None
        # An array without true, false and null has no letter r or l. If it is not nested either, it
        # has only numbers.
        flat = array.find(b"[", 1) < 0 and array.find(b"r") < 0 and array.find(b"l") < 0
        if flat and len(data) == bounded_count(shape):
            raw = tensor_data.pack_numbers(data, datatype)
            if raw is not None:
                raws.append(raw)
                continue
        raws.append(tensor_data.to_raw(data, name, datatype, shape))
    return raws
