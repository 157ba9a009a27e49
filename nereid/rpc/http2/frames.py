"""HTTP/2 on the wire: constants of RFC 9113, and functions that encode whole frames."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

DEFAULT_WINDOW_BYTES: Final = 65_535
DEFAULT_FRAME_BYTES: Final = 16_384
MAX_FRAME_BYTES: Final = (1 << 24) - 1
MAX_WINDOW_BYTES: Final = (1 << 31) - 1
MAX_STREAM_ID: Final = (1 << 31) - 1

# A frame's nine header bytes: length and type (24 + 8 bits), flags, stream id.
pack_frame_head: Final = Struct(">IBI").pack
_WORD: Final = Struct(">I")
_SETTING: Final = Struct(">HI")


class Code(IntEnum):
    """HTTP/2 error codes."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Http2ConnectionError(Exception):
    """Raised if the peer broke a rule of HTTP/2 and the whole connection must end."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Http2StreamError(Exception):
    """Raised if the peer broke a rule of HTTP/2 and only one stream must end."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Encode a frame of any type."""
    return pack_frame_head(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """Encode a SETTINGS frame. The mapping has a value for each setting's id."""
    return frame(
        SETTINGS, 0, 0, b"".join(_SETTING.pack(key, value) for key, value in values.items())
    )


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return the (id, value) pairs of a SETTINGS frame's payload, in their order."""
    return list(_SETTING.iter_unpack(payload))


def window_update(stream_id: int, increment: int) -> bytes:
    """Encode a WINDOW_UPDATE frame; stream id 0 means the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _WORD.pack(increment))


def rst_stream(stream_id: int, code: int) -> bytes:
    """Encode an RST_STREAM frame with an error code."""
    return frame(RST_STREAM, 0, stream_id, _WORD.pack(code))


def goaway(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    """Encode a GOAWAY frame with the id of the last stream that is processed."""
    return frame(GOAWAY, 0, 0, _WORD.pack(last_stream_id) + _WORD.pack(code) + debug)


def header_frames(stream_id: int, block: bytes, flags: int, max_frame_bytes: int) -> bytes:
    """Encode a HEADERS frame, followed by as many CONTINUATION frames as the block needs."""
    if len(block) <= max_frame_bytes:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    pieces = [frame(HEADERS, flags, stream_id, block[:max_frame_bytes])]
    for at in range(max_frame_bytes, len(block), max_frame_bytes):
        piece = block[at : at + max_frame_bytes]
        last = END_HEADERS if at + max_frame_bytes >= len(block) else 0
        pieces.append(frame(CONTINUATION, last, stream_id, piece))
    return b"".join(pieces)


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)
