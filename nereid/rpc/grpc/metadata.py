"""Text formats of gRPC: metadata, status messages, timeouts, literal header fields.

All sent fields are literals without indexing, so blocks can be cached as bytes.
"""

# layout: compiled

from __future__ import annotations

import base64
import binascii
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from nereid.rpc.grpc.status import RpcError, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Metadata = tuple[tuple[str, str | bytes], ...]

_UNIT_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT: Final = re.compile(rb"[0-9]{1,8}[HMSmun]\Z")
_KEY: Final = re.compile(r"[0-9a-z_.-]+\Z")
_TEXT: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?\Z")
_UNSAFE: Final = re.compile(rb"[^\x20-\x24\x26-\x7e]")
_CUT_ESCAPE: Final = re.compile(rb"%[0-9A-F]?\Z")
# gRPC clients refuse header lists larger than 8 to 16 KiB.
_MAX_MESSAGE_LENGTH: Final = 6000
_REMEMBERED_MESSAGE: Final = 200
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
# A grpc-timeout has at most eight digits. Longer times need a coarser unit.
_LARGEST: Final = 99_999_999


def first_value(metadata: Sequence[tuple[str, str | bytes]], key: str) -> str | bytes | None:
    """Return the first value of a metadata key; None if the key is missing."""
    for name, value in metadata:
        if name == key:
            return value
    return None


def parse_timeout_s(text: bytes) -> float | None:
    """Return a grpc-timeout in seconds; None if it is malformed."""
    if _TIMEOUT.match(text) is None:
        return None
    return int(text[:-1]) * _UNIT_S[chr(text[-1])]


def format_timeout(timeout_s: float) -> bytes:
    """Return a timeout in the form of grpc-timeout, in the finest unit that eight digits allow."""
    for unit, per_second in (("n", 1e9), ("u", 1e6), ("m", 1e3), ("S", 1.0), ("M", 1 / 60)):
        number = max(1, int(timeout_s * per_second))
        if number <= _LARGEST:
            return b"%d%s" % (number, unit.encode())
    return b"%dH" % min(_LARGEST, int(timeout_s / 3600))


def encode_message(message: str) -> bytes:
    """Percent-encode a status message. Cut it so that every peer accepts the header list."""
    raw = message[:_MAX_MESSAGE_LENGTH].encode("utf-8", "replace")
    text = _UNSAFE.sub(lambda match: b"%%%02X" % match.group()[0], raw)
    return _CUT_ESCAPE.sub(b"", text[:_MAX_MESSAGE_LENGTH])


def decode_message(text: bytes) -> str:
    """Decode a percent-encoded status message. Malformed escapes are left as they are."""
    plain = _ESCAPE.sub(lambda match: bytes((int(match.group(1), 16),)), text)
    return plain.decode("utf-8", "replace")


def decode_binary(value: bytes) -> list[bytes]:
    """Decode the values of a -bin field; raise RpcError if one is not base64.

    Padding is optional. Commas separate values.
    """
    try:
        return [
            base64.b64decode(part + b"=" * (-len(part) % 4), validate=True)
            for part in (piece.strip(b" ").rstrip(b"=") for piece in value.split(b","))
        ]
    except binascii.Error as error:
        raise RpcError(Status.INTERNAL, "a -bin metadata value is not base64") from error


def decode_pairs(key: bytes, value: bytes) -> list[tuple[str, str | bytes]]:
    """Return a header field as metadata pairs; a -bin field may have several values.

    As in grpcio, text is UTF-8 if possible, otherwise Latin-1.
    """
    name = key.decode("latin-1")
    if name.endswith("-bin"):
        return [(name, item) for item in decode_binary(value)]
    try:
        return [(name, value.decode())]
    except UnicodeDecodeError:
        return [(name, value.decode("latin-1"))]


def _length(size: int, prefix: int, bits: int) -> bytes:
    largest = (1 << bits) - 1
    if size < largest:
        return bytes((prefix | size,))
    out = bytearray((prefix | largest,))
    size -= largest
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def literal(name: bytes, value: bytes) -> bytes:
    """Encode a header field as a literal without indexing, with its name and value."""
    return b"\x00" + _length(len(name), 0, 7) + name + _length(len(value), 0, 7) + value


def literal_at(index: int, value: bytes) -> bytes:
    """Encode a literal field without indexing, whose name is in the static table."""
    return _length(index, 0, 4) + _length(len(value), 0, 7) + value


def encode_status(status: int, message: str) -> bytes:
    """Encode a status as literal fields. Short messages are cached, because servers repeat them."""
    if len(message) <= _REMEMBERED_MESSAGE:
        return _remembered_status(int(status), message)
    return _encode_status(status, message)


def _encode_status(status: int, message: str) -> bytes:
    block = literal(b"grpc-status", b"%d" % status)
    return block + literal(b"grpc-message", encode_message(message)) if message else block


_remembered_status: Final = lru_cache(256)(_encode_status)


@lru_cache(256)
def encode_trailer(key: str, value: str | bytes) -> bytes:
    """Encode one metadata pair like encode_metadata(), with a cache for the results."""
    return encode_metadata(((key, value),))


def encode_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    """Encode metadata as literal fields; raise ValueError for a forbidden key or value."""
    out = []
    for key, value in metadata:
        if _KEY.match(key) is None:
            raise ValueError(f"metadata key {key!r} is not lower-case ASCII")
        if key.endswith("-bin"):
            raw = value.encode() if isinstance(value, str) else value
            text = base64.b64encode(raw).rstrip(b"=")
        else:
            plain = value.decode("latin-1") if isinstance(value, bytes) else value
            if _TEXT.match(plain) is None:
                raise ValueError(f"metadata value of {key!r} is not printable ASCII")
            text = plain.encode("ascii")
        out.append(literal(key.encode("ascii"), text))
    return b"".join(out)
