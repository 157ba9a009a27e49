"""Framing of a request as its head defines it (RFC 9112), and rejection of unsupported framing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_gateway.server.limits import RequestRejected

if TYPE_CHECKING:
    import httptools

    from nereid_gateway.server.call import HttpCall


class _FinalHeaders(dict[bytes, bytes]):
    """Headers that ignore trailers. The parser reports trailers by the same callback."""

    def __setitem__(self, name: bytes, value: bytes) -> None:
        pass


def read_headers(call: HttpCall, parser: httptools.HttpRequestParser) -> bool:
    """Fill in a call from its head. Return whether the client waits for 100 Continue."""
    call.method = parser.get_method()
    call.keep_alive = parser.should_keep_alive()
    version = parser.get_http_version()
    if version != "1.1":
        if version != "1.0":
            raise RequestRejected(505, "HTTP Version Not Supported")
        call.http_1_0 = True
    headers = call.headers
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked":
            raise RequestRejected(501, "no transfer coding but chunked is known")
        call.headers = _FinalHeaders(headers)
        # An HTTP/1.0 proxy forwards chunks without understanding them, and may find another end of
        # the body (request smuggling). So the connection is not reused.
        call.keep_alive = call.keep_alive and not call.http_1_0
    if b"expect" not in headers:
        return False
    if headers[b"expect"].lower() != b"100-continue":
        raise RequestRejected(417, "only 100-continue may be expected")
    return not call.http_1_0


def without_upgrade(call: HttpCall, method: bytes) -> bytes:
    """Return the head of a request without its offer to upgrade the protocol. Reject CONNECT."""
    if method == b"CONNECT":
        raise RequestRejected(405, "Method Not Allowed", b"Allow: \r\n")
    headers = b"".join(
        b"%b: %b\r\n" % item
        for item in call.headers.items()
        if item[0] not in (b"connection", b"upgrade")
    )
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, call.target, headers)
