"""Forwards headers whose names match a pattern, as parameters of their request.

As on Triton, patterns are RE2 patterns that match anywhere in a name, without regard to case. RE2
takes linear time for any name. It is imported only if a pattern is set.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import InvalidArgument
from nereid.core.wire.messages import error_status_of
from nereid_gateway.server.request_reader import RequestReader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nereid.core.wire.messages import InferRequest, Parameter

    Text = str | bytes

# Triton gives parameters with these names a meaning.
_RESERVED: Final = frozenset(
    {
        *("sequence_id", "sequence_start", "sequence_end", "priority", "timeout"),
        *("headers", "binary_data_output"),
    }
)
_RESERVED_PREFIX: Final = "triton_"
_STREAM: Final = "triton_grpc_error"
_CACHED_NAMES: Final = 1024


def checked(text: str) -> str:
    """Return text. Raise ValueError if RE2 cannot compile it or is not installed."""
    if text:
        _compile(text)
    return text


def _compile(text: str) -> Any:
    try:
        # The package is needed only if a pattern is set.
        import re2  # noqa: PLC0415
    except ImportError as error:
        raise ValueError("forwarding headers needs the package google-re2") from error
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as refusal:
        reason = refusal.args[0] if refusal.args else b""
        raise ValueError(
            f"not a pattern of RE2: {reason.decode() if isinstance(reason, bytes) else reason}"
        ) from refusal


class HeaderForwarding:
    """Adds the headers that match a pattern to requests as parameters."""

    def __init__(
        self, pattern: str, without: Collection[str] = (), max_parameters: int = sys.maxsize
    ) -> None:
        """Compile the pattern, or raise ValueError.

        without: lower-case names to leave out. max_parameters: limit for a request's parameters.
        """
        self._pattern = _compile(pattern)
        self._max_parameters = max_parameters
        self._without = without
        self._matching: BoundedCache[Text, bool] = BoundedCache(_CACHED_NAMES)

    def forward_headers(self, request: InferRequest, headers: Iterable[tuple[Text, Text]]) -> None:
        """Add matching headers as parameters. A reserved name or too many set an error status."""
        matching: dict[str, Parameter] = {}
        for name, value in headers:
            matches = self._matching.get(name)
            if self._matches(name) if matches is None else matches:
                matching[_text(name)] = _text(value)
        if not matching:
            return
        for name in matching:
            reserved = name in _RESERVED or name.startswith(_RESERVED_PREFIX)
            if reserved and request.error_status is None:
                request.error_status = error_status_of(
                    InvalidArgument(
                        f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                    )
                )
        known = request.parameters
        request.parameters = matching if known is None else known | matching
        if len(request.parameters) > self._max_parameters and request.error_status is None:
            request.error_status = error_status_of(
                InvalidArgument(
                    f"a request has more than {self._max_parameters} parameters, with its forwarded"
                    " headers"
                )
            )

    def _matches(self, name: Text) -> bool:
        text = _text(name)
        excluded = text == _STREAM or text.lower() in self._without
        matches = not excluded and bool(self._pattern.search(text))
        return self._matching.remember(name, matches)


def _text(text: Text) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


class CasePreservingHeaders(dict[bytes, bytes]):
    """Headers by lower-case name. `spelt` has the names as the client wrote them."""

    def __init__(self, other: CasePreservingHeaders | None = None) -> None:
        super().__init__(other or {})
        self.spelt: dict[bytes, bytes] = {} if other is None else other.spelt

    def copy(self) -> CasePreservingHeaders:
        """Return a copy that shares the spelt names."""
        return CasePreservingHeaders(self)


class CasePreservingReader(RequestReader):
    """Request reader that gives calls CasePreservingHeaders."""

    def on_message_begin(self) -> None:
        """Give the new call its empty headers; the parser calls this."""
        super().on_message_begin()
        self.current.headers = CasePreservingHeaders()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header with its name as spelt; the parser calls this."""
        super().on_header(name, value)
        headers = self.current.headers
        if isinstance(headers, CasePreservingHeaders):
            headers.spelt[name] = value
