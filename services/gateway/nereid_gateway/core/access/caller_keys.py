"""Keys of callers that only a gateway knows: from a header, or from the principal."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.core.traffic.caller_keys import key_of, source_tag
from nereid_gateway.core.access.principal import principal_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.core.request_head import HeadReader

_HEADER: Final = "header:"


class CallerKeys:
    """Reads callers' keys for the models that the schedulers have named."""

    def __init__(self, sources: Mapping[str, str], heads: HeadReader) -> None:
        """Read keys for these models, from their sources of keys (`Traffic.by`)."""
        self._heads = heads
        self._sources = {name: (source_tag(by), _header_of(by)) for name, by in sources.items()}

    def read(self, request: ClientRequest) -> bytes:
        """Return InferRequest.caller_key; empty for other models, and with a version."""
        model, version, _ = self._heads.read(request.head)
        source = self._sources.get(model)
        if source is None or version:
            return b""
        tag, header = source
        value = _value_of(request, header)
        return tag if value is None else tag + key_of(value)


def _header_of(by: str) -> str:
    """Return the name of the header that has the keys; empty if principals are the keys."""
    return by.removeprefix(_HEADER) if by.startswith(_HEADER) else ""


def _value_of(request: ClientRequest, header: str) -> bytes | None:
    if not header:
        principal = principal_of(request.sender)
        if principal is None or principal.is_anonymous:
            return None
        return principal.sequence_owner.encode()
    value: str | bytes | None = None
    headers: Any = request.headers
    if isinstance(headers, dict):
        value = headers.get(header.encode())
    elif headers:
        # The last value of a repeated header counts, as over HTTP.
        value = dict(headers).get(header)
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
