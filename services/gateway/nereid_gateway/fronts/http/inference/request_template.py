"""Template of requests and responses on one connection: all parts that repeat, so not the tensors.

Most clients that keep a connection repeat the HTTP head and the JSON header. With a template,
neither is parsed again, and the response's header is not formatted again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.plane.control.load_reports import FORMAT_HEADER
from nereid_gateway.server.call import BINARY, JOIN_BYTES, kept_alive_head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import InferResponse, Payload
    from nereid_gateway.fronts.http.inference.infer_request import (
        InferRequestDecoder,
        ParsedHeader,
    )
    from nereid_gateway.server.call import HttpCall

# Bytes of a JSON header, or of the text before a response's tensors. Each connection has a
# template.
_MAX_BYTES: Final = 1024
# Headers that influence the form of the response.
_MEANINGFUL: Final = (b"accept-encoding", FORMAT_HEADER)


class RequestTemplate:
    """Template for requests with the same HTTP head and JSON header, and only binary tensors."""

    __slots__ = (
        "_head",
        "_joins",
        "_priority",
        "_response_head",
        "_response_sizes",
        "_response_start",
        "_sizes",
        "_text",
        "_timeout_us",
        "decoder",
        "form",
    )

    def __init__(
        self,
        decoder: InferRequestDecoder,
        text: bytes,
        header: ParsedHeader,
        sizes: tuple[int, ...],
    ) -> None:
        self.decoder = decoder
        self.form = header.form
        self._text = text
        self._head = header.checked.head
        self._priority = header.priority
        self._timeout_us = header.timeout_us
        self._sizes = sizes
        # No response has the initial sizes.
        self._response_head = b""
        self._response_sizes = [-1]
        self._response_start = b""
        self._joins = False

    def make_request(self, body: bytes) -> ClientRequest | None:
        """Return the request, or None if the body's JSON header differs from the template's.

        The body must be as long as the one from which the template was made.
        """
        text = self._text
        if not body.startswith(text):
            return None
        position = len(text)
        payloads: list[Payload]
        if len(self._sizes) == 1:
            payloads = [body[position:]]
        else:
            payloads = []
            for size in self._sizes:
                payloads.append(body[position : position + size])
                position += size
        return ClientRequest(0, self._head, payloads, "", None, self._priority, self._timeout_us)

    def response_parts(self, response: InferResponse) -> list[bytes] | None:
        """Return the parts of a kept-alive response, or None if it must be encoded."""
        payloads: list[Any] = response.payloads
        sizes = self._response_sizes
        if response.head != self._response_head or len(payloads) != len(sizes):
            return None
        for index, payload in enumerate(payloads):
            if len(payload) != sizes[index]:
                return None
        if self._joins:
            if len(payloads) == 1:
                return [self._response_start + payloads[0]]
            return [b"".join([self._response_start, *payloads])]
        return [self._response_start, *payloads]

    def remember_response(
        self, response: InferResponse, encoded: tuple[bytes, bytes, Sequence[bytes]]
    ) -> None:
        """Keep the text before the tensors of a response, if all its tensors are binary."""
        content_type, extra, parts = encoded
        payloads: Sequence[Any] = response.payloads
        # A binary body has two parts for the JSON header and one for each tensor. Outputs in JSON
        # have no parts.
        if content_type != BINARY or len(parts) != 2 + len(payloads):
            return
        json_header = parts[0] + parts[1]
        sizes = [*map(len, payloads)]
        size_bytes = len(json_header) + sum(sizes)
        start = kept_alive_head(content_type, extra, size_bytes) + json_header
        if len(start) <= _MAX_BYTES:
            self._response_head, self._response_sizes = response.head, sizes
            self._response_start = start
            self._joins = size_bytes <= JOIN_BYTES


def make_template(
    call: HttpCall, decoder: InferRequestDecoder, length: int, request: ClientRequest
) -> RequestTemplate | None:
    """Return a template, or None if the call does not qualify. length: bytes of the JSON header.

    A call qualifies if its HTTP head and JSON header say nothing beyond the model and the tensors.
    """
    if (
        length > _MAX_BYTES
        or length == len(call.body)
        or request.request_id
        or request.error_status is not None
        or any(name in call.headers for name in _MEANINGFUL)
    ):
        return None
    text = call.body[:length]
    header = decoder.known_header(text)
    if header is None or header.parameters or header.checked.strings or header.checked.regions:
        return None
    sizes = tuple(size for size in header.sizes if size is not None)
    if not sizes or len(sizes) < len(header.sizes):
        return None
    return RequestTemplate(decoder, text, header, sizes)
