"""Headers that become parameters of their request, where their names match a pattern.

Patterns are RE2's, as on Triton, searched for in a name without regard to case; RE2 takes linear
time whatever the names. Only a gateway with a pattern loads the library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import InvalidArgument
from nereid.core.wire.messages import error_status_of
from nereid_gateway.server.request_reader import RequestReader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nereid.core.wire.messages import InferRequest, Parameter

    Text = str | bytes

# These have a meaning as parameters.
_OWN: Final = frozenset({"sequence_id", "sequence_start", "sequence_end"})
# A stream's own metadata.
_STREAM: Final = "triton_grpc_error"
_CACHED_NAMES: Final = 1024


def checked(text: str) -> str:
    """text, if it is a pattern of RE2; else ValueError."""
    if text:
        _compile(text)
    return text


def _compile(text: str) -> Any:
    try:
        # Imported only where the settings ask for it.
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
    """Adds the headers that match one pattern to requests."""

    def __init__(self, pattern: str, without: Collection[str] = ()) -> None:
        """without: headers that are never forwarded, in lower case."""
        self._pattern = _compile(pattern)
        self._without = without
        # Whether a name matches.
        self._matching: BoundedCache[Text, bool] = BoundedCache(_CACHED_NAMES)

    def forward_headers(self, request: InferRequest, headers: Iterable[tuple[Text, Text]]) -> None:
        """Make parameters of the headers that match; a reserved name makes it an error."""
        given: dict[str, Parameter] = {}
        for name, value in headers:
            matches = self._matching.get(name)
            if self._matches(name) if matches is None else matches:
                given[_text(name)] = _text(value)
        if not given:
            return
        for name in given:
            if name.startswith("triton_") and request.error_status is None:
                request.error_status = error_status_of(
                    InvalidArgument(
                        f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                    )
                )
        request.parameters = given if request.parameters is None else request.parameters | given

    def _matches(self, name: Text) -> bool:
        text = _text(name)
        excluded = text in _OWN or text == _STREAM or text.lower() in self._without
        matches = not excluded and bool(self._pattern.search(text))
        return self._matching.remember(name, matches)


def _text(text: Text) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


class CasePreservingHeaders(dict[bytes, bytes]):
    """Headers by lower-case name, and as the client spelt the names."""

    def __init__(self, other: CasePreservingHeaders | None = None) -> None:
        super().__init__(other or {})
        self.spelt: dict[bytes, bytes] = {} if other is None else other.spelt

    def copy(self) -> CasePreservingHeaders:
        return CasePreservingHeaders(self)


class CasePreservingReader(RequestReader):
    """Reads calls that have CasePreservingHeaders."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.current.headers = CasePreservingHeaders()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        headers = self.current.headers
        if isinstance(headers, CasePreservingHeaders):
            headers.spelt[name] = value
