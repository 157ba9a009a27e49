"""Access rules of one port: whether a call is permitted, and who its caller is.

An API may require a header and credentials. With --open-control-apis=false, an API that changes the
server is closed unless one of them guards it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid_gateway.core.access.refusal import CallRefused, Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from nereid_gateway.guards.auth.access import AccessControl, Caller
    from nereid_gateway.guards.policy.restricted_apis import Restriction

    Text = str | bytes

_CLOSED: Final = Refusal(
    Reason.CLOSED, "This API is closed on this server: restrict it, or set --open-control-apis"
)


class HeaderRule(NamedTuple):
    """Header that a call needs in addition to credentials, and the refusal if it is missing."""

    # A lower-case name. If it is None, every call is refused.
    header: Text | None
    value: Text
    refusal: Refusal

    def is_met(self, header_of: Callable[..., Text | None]) -> bool:
        """Return whether a call has the header, with the required value."""
        return self.header is not None and header_of(self.header) == self.value


class CallPolicy:
    """Rules of one port. `access` is `None` if clients need no credentials."""

    def __init__(
        self,
        restrictions: Mapping[str, Restriction],
        closed: Collection[str],
        access: AccessControl | None,
        encode: Callable[[str], Text] = str,
    ) -> None:
        """Make the rules. encode: converts header texts to the type in which calls have them."""
        self._restrictions = restrictions
        self._closed = closed
        self.access = access
        self._encode = encode
        self._credentials = encode("x-api-key"), encode("authorization")

    def __bool__(self) -> bool:
        return bool(self._restrictions or self._closed or self.access is not None)

    def rule_of(
        self, api: str | None, *, changes: bool, is_grpc: bool = False
    ) -> HeaderRule | None:
        """Return the rule for calls of an API, or None if they need no header."""
        restriction = None if api is None else self._restrictions.get(api)
        if restriction is None:
            return HeaderRule(None, "", _CLOSED) if changes and api in self._closed else None
        what, header = "API", restriction.header
        if is_grpc:
            what, header = "protocol", "triton-grpc-protocol-" + header.lower()
        text = f"This {what} is restricted, expecting header '{header}'"
        return HeaderRule(
            self._encode(header.lower()),
            self._encode(restriction.value),
            Refusal(Reason.RESTRICTED, text),
        )

    def admit(
        self,
        api: str | None,
        rule: HeaderRule | None,
        header_of: Callable[..., Text | None],
        peer: str,
        model: str = "",
    ) -> Caller | None:
        """Return the caller, or None if credentials are not checked. May raise CallRefused."""
        if rule is not None and not rule.is_met(header_of):
            raise CallRefused(rule.refusal)
        if self.access is None or api is None:
            return None
        api_key, authorization = self._credentials
        credentials = header_of(api_key), header_of(authorization)
        return self.access.authorize(*credentials, peer, api, model)
