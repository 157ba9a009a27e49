"""Decoder of HPACK header blocks (RFC 7541), for the receiving side of one connection.

The tables and Huffman codes come from hpack. The loop is our own: about 2 us for the dozen fields
of a gRPC client, where hpack takes 20 us. Equal blocks decode equally while `generation` is
unchanged.
"""

from __future__ import annotations

from typing import Final

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from nereid.rpc.http2.frames import Code, Http2ConnectionError

Field = tuple[bytes, bytes]

# The placeholder for index 0, which is an error, makes table indices equal to list indices.
_STATIC: tuple[Field, ...] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_FIRST_DYNAMIC: Final = len(_STATIC)
_ENTRY_OVERHEAD_BYTES: Final = 32
# Enough for any number below 2**28. A longer integer is an attack or a bug.
_MAX_INTEGER_BYTES: Final = 4
# RFC 7541 4.2: the smallest size since the last block, and the current size.
_MAX_RESIZES: Final = 2


class Decoded:
    """Fields of a decoded block; `fresh` has the positions of literal fields."""

    __slots__ = ("fields", "fresh", "oversized")

    def __init__(self) -> None:
        self.fields: list[Field] = []
        self.fresh: list[int] = []
        self.oversized = False


class HeaderDecoder:
    """Decoding context of one connection; `generation` counts changes of the dynamic table."""

    __slots__ = ("_max_list_bytes", "_max_table_bytes", "_table", "generation")

    def __init__(self, max_list_bytes: int) -> None:
        self._table = HeaderTable()
        self._max_table_bytes = HeaderTable.DEFAULT_SIZE
        self._max_list_bytes = max_list_bytes
        self.generation = 0

    def decode(self, block: bytes) -> Decoded:
        """Decode a header block; raise Http2ConnectionError if it is damaged."""
        try:
            return self._decode(block)
        except (IndexError, HPACKError) as error:
            raise Http2ConnectionError(Code.COMPRESSION_ERROR, "a damaged header block") from error

    def _decode(self, block: bytes) -> Decoded:
        decoded = Decoded()
        fields = decoded.fields
        dynamic = self._table.dynamic_entries
        pos, end = 0, len(block)
        budget = self._max_list_bytes
        resizes_left = _MAX_RESIZES
        while pos < end:
            first = block[pos]
            if first & 0x80:
                if first == 0xFF:
                    index, pos = _integer(block, pos, 0x7F)
                else:
                    index = first & 0x7F
                    pos += 1
                if index == 0:
                    raise Http2ConnectionError(Code.COMPRESSION_ERROR, "header index 0")
                entry = (
                    _STATIC[index] if index < _FIRST_DYNAMIC else dynamic[index - _FIRST_DYNAMIC]
                )
            elif first & 0x60 == 0x20:
                if not resizes_left:
                    raise Http2ConnectionError(
                        Code.COMPRESSION_ERROR, "a table size update after a field, or a third one"
                    )
                resizes_left -= 1
                pos = self._resize(block, pos)
                continue
            else:
                entry, pos = self._literal(block, pos, 0x3F if first & 0x40 else 0x0F)
                decoded.fresh.append(len(fields))
                if first & 0x40:
                    self._table.add(entry[0], entry[1])
                    self.generation += 1
            resizes_left = 0
            # Beyond the limit, decode on without keeping fields: the dynamic table must match the
            # peer's.
            budget -= len(entry[0]) + len(entry[1]) + _ENTRY_OVERHEAD_BYTES
            if budget < 0:
                decoded.oversized = True
            else:
                fields.append(entry)
        return decoded

    def _resize(self, block: bytes, pos: int) -> int:
        size, pos = _integer(block, pos, 0x1F)
        if size > self._max_table_bytes:
            raise Http2ConnectionError(Code.COMPRESSION_ERROR, "header table larger than allowed")
        self._table.maxsize = size
        self.generation += 1
        return pos

    def _literal(self, block: bytes, pos: int, mask: int) -> tuple[Field, int]:
        index, pos = _integer(block, pos, mask)
        if index == 0:
            name, pos = _string(block, pos)
        elif index < _FIRST_DYNAMIC:
            name = _STATIC[index][0]
        else:
            name = self._table.dynamic_entries[index - _FIRST_DYNAMIC][0]
        value, pos = _string(block, pos)
        return (name, value), pos


def _integer(block: bytes, pos: int, mask: int) -> tuple[int, int]:
    number = block[pos] & mask
    pos += 1
    if number < mask:
        return number, pos
    for shift in range(0, 7 * _MAX_INTEGER_BYTES, 7):
        byte = block[pos]
        pos += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, pos
    raise Http2ConnectionError(Code.COMPRESSION_ERROR, "an endless header integer")


def _string(block: bytes, pos: int) -> tuple[bytes, int]:
    huffman = block[pos] & 0x80
    size = block[pos] & 0x7F
    if size == 0x7F:
        size, pos = _integer(block, pos, 0x7F)
    else:
        pos += 1
    stop = pos + size
    if stop > len(block):
        raise Http2ConnectionError(Code.COMPRESSION_ERROR, "a cut-off header block")
    text = block[pos:stop]
    return (decode_huffman(text) if huffman else text), stop
