"""Strings that are not UTF-8, for ONNX Runtime's Python API, which handles only valid text.

Bytes that are not UTF-8 arrive as surrogates (PEP 383). Each such byte becomes a private-use
character on the way in, and a byte again on the way out. Such characters in the text itself are
escaped too, so the encoding is unambiguous.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from nereid.core.tensors.tensors import Array

# First of 128 characters in the last plane. They stand for the bytes from 0x80 on.
_FIRST: Final = 0x10FE80
_BYTE: Final = 0x80
# The offset that surrogateescape adds to a byte.
_SURROGATE: Final = 0xDC00
_TO_ESCAPE: Final = re.compile(f"[\udc80-\udcff{chr(_FIRST)}-{chr(_FIRST + 127)}]")
_ESCAPED: Final = re.compile(f"[{chr(_FIRST)}-{chr(_FIRST + 127)}]")


def escape_strings(array: Array) -> Array:
    """Return an input array. If it holds strings, return a copy with escaped strings."""
    return _map_strings(array, _escape) if array.dtype.kind == "O" else array


def unescape_strings(array: Array) -> Array:
    """Return an output array. If it holds strings, return them as bytes."""
    return _map_strings(array, _unescape) if array.dtype.kind in "OU" else array


def _map_strings(array: Array, change: Any) -> Array:
    changed: Array = np.empty(array.size, dtype=np.object_)
    changed[:] = [change(text) for text in array.ravel().tolist()]
    return changed.reshape(array.shape)


def _escape(text: str) -> str:
    return _TO_ESCAPE.sub(_escape_character, text)


def _escape_character(match: re.Match[str]) -> str:
    character = match[0]
    if ord(character) < _FIRST:
        return chr(ord(character) - _SURROGATE - _BYTE + _FIRST)
    return "".join(chr(byte - _BYTE + _FIRST) for byte in character.encode())


def _unescape(text: str) -> bytes:
    restored = _ESCAPED.sub(lambda match: chr(ord(match[0]) - _FIRST + _BYTE + _SURROGATE), text)
    return restored.encode("utf-8", "surrogateescape")
