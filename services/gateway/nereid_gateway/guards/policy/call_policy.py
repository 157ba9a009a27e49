"""Who may call what on one port: of a call's API and headers, the caller or a refusal.

An API may require a header (restricted_apis), be closed where it changes the server and nothing
else guards it (--open-control-apis=false), and require credentials (--auth-config). The guards of
the two protocols ask; neither is there where nothing of this is configured.
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
    """What a call needs beside credentials."""

    # In lower case; None: nothing helps.
    header: Text | None
    value: Text
    refusal: Refusal

    def is_met(self, header_of: Callable[..., Text | None]) -> bool:
        """Whether a call has the header."""
        return self.header is not None and header_of(self.header) == self.value


class CallPolicy:
    """The rules of one port. access: None if clients need no credentials."""

    def __init__(
        self,
        restrictions: Mapping[str, Restriction],
        closed: Collection[str],
        access: AccessControl | None,
        encode: Callable[[str], Text] = str,
    ) -> None:
        """encode: how headers are looked up."""
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
        """For the calls of an API that change the server, or do not; None: they need no header."""
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
        """Who sends a call; None: nobody asks.

        api: its group, None for what does not exist; model: that it names, empty if none.

        Raises:
            CallRefused: it is not permitted.
        """
        if rule is not None and not rule.is_met(header_of):
            raise CallRefused(rule.refusal)
        if self.access is None or api is None:
            return None
        api_key, authorization = self._credentials
        credentials = header_of(api_key), header_of(authorization)
        return self.access.authorize(*credentials, peer, api, model)
