"""Headers that become parameters of their request, where their names match a pattern.

Patterns are RE2's, as on Triton, searched for in a name without regard to case; RE2 needs linear
time whatever the client calls its headers. Only a gateway with a pattern makes any of this, and
loads the library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import InvalidArgument
from nereid.core.messages import error_status_of
from nereid.services.gateway.http.server.connection import HttpConnection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.core.messages import InferRequest, Parameter

    Text = str | bytes

# These mean something as parameters.
_OWN: Final = frozenset({"sequence_id", "sequence_start", "sequence_end"})
# A stream's own metadata.
_STREAM: Final = "triton_grpc_error"
_TABLE_LIMIT: Final = 1024


def checked(text: str) -> str:
    """text, if RE2 takes it as a pattern; else ValueError."""
    if text:
        _compile(text)
    return text


def _compile(text: str) -> Any:
    try:
        # Only who asks for forwarding needs it.
        import re2  # noqa: PLC0415
    except ImportError as error:
        raise ValueError("forwarding headers needs the package google-re2") from error
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        raise ValueError(
            f"not a pattern of RE2: {reason.decode() if isinstance(reason, bytes) else reason}"
        ) from error


class HeaderForwarding:
    """Adds the headers that match one pattern to requests."""

    def __init__(self, pattern: str) -> None:
        self._pattern = _compile(pattern)
        # Clients repeat themselves.
        self._wanted: dict[Text, bool] = {}

    def add(self, request: InferRequest, headers: Iterable[tuple[Text, Text]]) -> None:
        """Make parameters of what is wanted of headers; of one that may not be, a fault."""
        given: dict[str, Parameter] = {}
        for name, value in headers:
            wanted = self._wanted.get(name)
            if self._matches(name) if wanted is None else wanted:
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
        wanted = text not in _OWN and text != _STREAM and bool(self._pattern.search(text))
        if len(self._wanted) >= _TABLE_LIMIT:
            self._wanted.clear()
        self._wanted[name] = wanted
        return wanted


def _text(text: Text) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


class SpeltHeaders(dict[bytes, bytes]):
    """Headers by lower-case name that remember how the client spelt the names."""

    def __init__(self, other: SpeltHeaders | None = None) -> None:
        super().__init__(other or {})
        self.spelt: dict[bytes, bytes] = {} if other is None else other.spelt

    def copy(self) -> SpeltHeaders:
        return SpeltHeaders(self)


class SpeltConnection(HttpConnection):
    """A connection whose calls have SpeltHeaders."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._current.headers = SpeltHeaders()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        headers = self._current.headers
        if isinstance(headers, SpeltHeaders):
            headers.spelt[name] = value
