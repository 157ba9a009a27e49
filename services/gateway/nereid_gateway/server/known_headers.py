"""Request head that is likely to be repeated on the same connection.

A head's meaning depends on its bytes alone, so a request that begins with known bytes needs no
parser. Only plain heads qualify: with a Content-Length, and with no other header that changes the
framing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nereid_gateway.server.call import HttpCall

_HEAD_END: Final = b"\r\n\r\n"
_MAX_HEAD_BYTES: Final = 4096
_DISQUALIFYING: Final = (b"transfer-encoding", b"expect")


class KnownHeaders:
    """Known head. end: bytes of head and body. endpoint_data: what an endpoint derives from it."""

    __slots__ = ("end", "endpoint_data", "headers", "method", "start", "target", "text")

    def __init__(self, text: bytes, end: int, call: HttpCall) -> None:
        self.text = text
        self.start = len(text)
        self.end = end
        self.method = call.method
        self.target = call.target
        self.headers = call.headers
        self.endpoint_data: Any = None

    @classmethod
    def from_call(cls, call: HttpCall, first_bytes: bytes) -> KnownHeaders | None:
        """Return the known head of a parsed request, or None if the head does not qualify."""
        start = first_bytes.find(_HEAD_END) + len(_HEAD_END)
        length = call.headers.get(b"content-length")
        if (
            not len(_HEAD_END) <= start <= _MAX_HEAD_BYTES
            or length is None
            # If empty lines precede the head, find() has found them instead of the head's end.
            or first_bytes.startswith((b"\r", b"\n"))
            or not call.keep_alive
            or call.http_1_0
            or any(name in call.headers for name in _DISQUALIFYING)
        ):
            return None
        return cls(first_bytes[:start], start + int(length), call)
