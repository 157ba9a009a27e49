"""What a request's head says of the bytes to come (RFC 9112), and the refusal of what is not
spoken here.

Knows no connection; asked by the connection while its parser stands behind a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.services.gateway.http.server.limits import Refused

if TYPE_CHECKING:
    import httptools

    from nereid.services.gateway.http.server.call import HttpCall


class _Complete(dict[bytes, bytes]):
    """Headers that what stands behind the body adds nothing to: trailers come too late."""

    def __setitem__(self, name: bytes, value: bytes) -> None:
        pass


def read_head(call: HttpCall, parser: httptools.HttpRequestParser) -> bool:
    """Fill in what the head says; whether its client may want to be asked for the body.

    Raises:
        Refused: its version, framing or expectation is not known here.
    """
    call.method = parser.get_method()
    call.keep_alive = parser.should_keep_alive()
    version = parser.get_http_version()
    if version != "1.1":
        if version != "1.0":
            raise Refused(505, "HTTP Version Not Supported")
        call.http_1_0 = True
    headers = call.headers
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked":
            raise Refused(501, "no transfer coding but chunked is known")
        call.headers = _Complete(headers)
        # A proxy of HTTP/1.0 passes chunks on without knowing them: who knows where they end.
        call.keep_alive = call.keep_alive and not call.http_1_0
    if b"expect" not in headers:
        return False
    if headers[b"expect"].lower() != b"100-continue":
        raise Refused(417, "only 100-continue may be expected")
    return not call.http_1_0


def without_upgrade(call: HttpCall, method: bytes) -> bytes:
    """The head of an offer to upgrade, without the offer: no other protocol is spoken here."""
    if method == b"CONNECT":
        # There is no target that could be connected to.
        raise Refused(405, "Method Not Allowed", b"Allow: \r\n")
    headers = b"".join(
        b"%b: %b\r\n" % item
        for item in call.headers.items()
        if item[0] not in (b"connection", b"upgrade")
    )
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, call.target, headers)
