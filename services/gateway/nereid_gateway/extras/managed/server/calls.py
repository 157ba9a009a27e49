"""Calls of a managed port, whose responses differ in form from those of the HTTP port.

The platforms do not forward Triton's headers, so content types state the length of the JSON header.
"""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.rpc.net.limits.budget import NO_ACCOUNT
from nereid_gateway.extras.managed.server.content_types import header_length_text
from nereid_gateway.server.call import BINARY, JSON, HttpCall
from nereid_gateway.server.request_reader import RequestReader

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from nereid.rpc.net.limits.budget import Account
    from nereid_gateway.server.known_headers import KnownHeaders

    Work = Callable[["ManagedCall"], Coroutine[Any, Any, None] | None]

_LENGTH: Final = b"inference-header-content-length"
_LENGTH_LINE: Final = b"Inference-Header-Content-Length: "
_FIRST_ERROR: Final = 400


class ManagedCall(HttpCall):
    """Call that the port translates to a call of a KServe route."""

    __slots__ = ("binary_type", "map_status", "response_type", "translated", "work")

    def __init__(
        self, on_progress: Callable[[], None], peer: str = "", account: Account = NO_ACCOUNT
    ) -> None:
        super().__init__(on_progress, peer, account)
        # True if the target has been replaced by that of a KServe route.
        self.translated = False
        # Serves the call in place of the KServe route. The route then only decides who may make the
        # call.
        self.work: Work | None = None
        # Content types of messages with binary tensors. The JSON header's length is appended to
        # each. If `response_type` is empty, responses have the form of the HTTP port.
        self.binary_type = self.response_type = b""
        # Returns the status to send for an error's status, content type and text.
        self.map_status: Callable[[int, bytes, bytes], int] | None = None

    def translate(self, target: bytes, work: Work | None = None) -> None:
        """Turn this call into a call of target. work: serves the call in place of the route.

        Raises InvalidArgument if the content type is malformed.
        """
        # Without accept-encoding, responses are not compressed, as on Triton.
        unread = (_LENGTH, b"accept-encoding")
        headers = {name: text for name, text in self.headers.items() if name not in unread}
        length = header_length_text(headers.get(b"content-type", b""), self.binary_type)
        if length is not None:
            headers[_LENGTH] = length
        self.headers, self.target, self.work = headers, target, work
        self.translated = True

    def respond(
        self,
        status: int,
        body: Sequence[bytes],
        content_type: bytes = JSON,
        extra: bytes = b"",
    ) -> None:
        """Respond with the content type and status that the platform expects."""
        if self.response_type and content_type == BINARY and extra.startswith(_LENGTH_LINE):
            line, _, extra = extra.partition(b"\r\n")
            content_type = self.response_type + line[len(_LENGTH_LINE) :]
        if status >= _FIRST_ERROR and self.map_status is not None:
            status = self.map_status(status, content_type, b"".join(body))
        super().respond(status, body, content_type, extra)

    def fail(
        self, status: int, message: str, content_type: bytes = JSON, extra: bytes = b""
    ) -> None:
        """Respond with an error body and the status that the platform expects."""
        if self.map_status is not None:
            text = message.encode("utf-8", "replace")
            status = self.map_status(status, content_type, text)
        super().fail(status, message, content_type, extra)


class ManagedReader(RequestReader):
    """Request reader that makes ManagedCalls."""

    def make_call(
        self, on_progress: Callable[[], None], peer: str, account: Account
    ) -> ManagedCall:
        """Return an empty ManagedCall for a request that begins to arrive."""
        return ManagedCall(on_progress, peer, account)

    def known_headers_of(self, call: HttpCall, first_bytes: bytes) -> KnownHeaders | None:  # noqa: ARG002
        """Return None: a known head would become a plain HttpCall."""
        return None
