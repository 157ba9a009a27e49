"""A request head that is likely to come again on the same connection.

A client that keeps its connection mostly sends one head again and again, and what a head says is a
pure function of its bytes: by them alone the next request is told and cut off, without a parser.
Only plain heads qualify, those whose body is as long as they say. Knows no connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nereid.services.gateway.http.server.call import HttpCall

_HEAD_END: Final = b"\r\n\r\n"
_LONGEST_BYTES: Final = 4096
_UNLIKE: Final = (b"transfer-encoding", b"expect")


class KnownHead(NamedTuple):
    """A head as it came, where its body ends, and what the parser made of it."""

    text: bytes
    end: int
    method: bytes
    target: bytes
    headers: dict[bytes, bytes]

    @classmethod
    def of(cls, call: HttpCall, beginning: bytes) -> KnownHead | None:
        """The head of a parsed request whose first bytes these are, if it can be told again."""
        start = beginning.find(_HEAD_END) + len(_HEAD_END)
        length = call.headers.get(b"content-length")
        if (
            not len(_HEAD_END) <= start <= _LONGEST_BYTES
            or length is None
            # Empty lines before a head would be taken for all of it.
            or beginning.startswith((b"\r", b"\n"))
            or not call.keep_alive
            or call.http_1_0
            or any(name in call.headers for name in _UNLIKE)
        ):
            return None
        end = start + int(length)
        return cls(beginning[:start], end, call.method, call.target, call.headers.copy())

    def begins(self, data: bytes) -> bool:
        """Whether data begins with a whole request with this head."""
        return len(data) >= self.end and data.startswith(self.text)

    def take(self, call: HttpCall, data: bytes) -> bytes:
        """Fill call with the request that data begins with; what is behind it."""
        call.method, call.target, call.headers = self.method, self.target, self.headers.copy()
        call.body = data[len(self.text) : self.end]
        return data[self.end :]
