"""Cuts the data of tensors out of a JSON header, so that the rest repeats and can be cached.

An array has the same value whether it is parsed alone or within its document.
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

# As serialisers write the member. One space may follow.
_MEMBER: Final = b'"data":'
# The mark is random, so that no client can send it.
MARK: Final = secrets.token_hex(16)
QUOTED_MARK: Final = b'"%b"' % MARK.encode()


def cut(text: bytes) -> tuple[bytes, Sequence[bytes]]:
    """Return a header that has marks in place of its arrays of data, and the arrays.

    Arrays with strings are not cut, because strings may contain anything.
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
        # An array of numbers has no brace or quote, so it ends before the next one.
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

    rest: the text with marks, of a valid request. count: the number of marks that cut() inserted.
    """
    try:
        inputs = orjson.loads(rest)["inputs"]
        return [tensor["data"] for tensor in inputs if "data" in tensor] == [MARK] * count
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return False


def read(arrays: Sequence[bytes], inputs: Sequence[HeadInput]) -> list[bytes] | None:
    """Return the inputs' raw data, or None if an array is not valid JSON by itself.

    The size of numbers follows from the header, so it was compared with the limit before.
    Raises NereidError if the data is wrong, as tensor_data.to_raw does.
    """
    raws = []
    for array, (name, datatype, shape) in zip(arrays, inputs, strict=True):
        try:
            data = orjson.loads(array)
        except orjson.JSONDecodeError:
            return None
        # Without r and l, there is no true, false or null. If the array is also not nested, it has
        # only numbers.
        flat = array.find(b"[", 1) < 0 and array.find(b"r") < 0 and array.find(b"l") < 0
        if flat and len(data) == bounded_count(shape):
            raw = tensor_data.pack_numbers(data, datatype)
            if raw is not None:
                raws.append(raw)
                continue
        raws.append(tensor_data.to_raw(data, name, datatype, shape))
    return raws
