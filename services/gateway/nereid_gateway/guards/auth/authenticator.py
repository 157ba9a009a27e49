"""Finds the principal of a call by its credentials. Accepted credentials are cached."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from time import monotonic, time
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.bounded_cache import BoundedCache
from nereid.rpc.net.address import client_of
from nereid_gateway.core.access.grant import NOTHING, Limits, union
from nereid_gateway.core.access.principal import Principal
from nereid_gateway.core.access.refusal import (
    INVALID_CREDENTIALS,
    NO_CREDENTIALS,
    TOO_MANY_ATTEMPTS,
    CallRefused,
)
from nereid_gateway.core.access.usage import Usage
from nereid_gateway.guards.auth.api_key import digest_of
from nereid_gateway.guards.auth.tokens import InvalidTokenError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_gateway.guards.auth.config import AuthConfig
    from nereid_gateway.guards.auth.tokens import TokenVerifier, VerifiedToken

    Clock = Callable[[], float]

Text = str | bytes

CREDENTIAL_HEADERS: Final = frozenset({"authorization", "x-api-key"})
_REMEMBERED: Final = 4096
_MAX_CREDENTIAL_BYTES: Final = 8192
# Limit on principals of tokens. Idle principals are dropped first.
_MAX_TOKEN_PRINCIPALS: Final = 8192
# Limit per address. Verifying this many tokens takes a few percent of a core.
_INVALID_TOKENS: Final = Limits(requests_per_second=50.0, burst=100.0)
_ADDRESSES: Final = 1024
_BEARER: Final = "bearer "


class Credentials(NamedTuple):
    """Credentials of a call: the values of two headers, and the address of the sender."""

    api_key: Text | None
    authorization: Text | None
    peer: str


class Authenticator:
    """The principals of one gateway. epoch_s: clock for the expiry of tokens."""

    def __init__(
        self,
        config: AuthConfig,
        verifier: TokenVerifier | None = None,
        *,
        monotonic_s: Clock = monotonic,
        epoch_s: Clock = time,
    ) -> None:
        self._now = monotonic_s
        self._epoch_s = epoch_s
        self._named: dict[str, Principal] = {}
        self._of_tokens: dict[tuple[str, str, frozenset[str]], Principal] = {}
        # Principal of calls without credentials. The grant is empty if such calls are refused.
        self.anonymous = Principal("anonymous", identity=())
        # Values: the principal, and the expiry in epoch seconds. A value is valid in only one of
        # the headers, so each header has its own cache.
        self._by_api_key, self._by_authorization = (
            BoundedCache[Text, tuple[Principal, float | None]](_REMEMBERED, _MAX_CREDENTIAL_BYTES)
            for _ in range(2)
        )
        self._invalid_tokens: BoundedCache[str, Usage] = BoundedCache(_ADDRESSES)
        self.apply(config, verifier)

    def apply(self, config: AuthConfig, verifier: TokenVerifier | None) -> None:
        """Replace the configuration. Principals that are still in it keep their usage."""
        self._config = config
        self._verifier = verifier
        self.anonymous.grant = config.anonymous or NOTHING
        named = {}
        self._by_digest: dict[str, Principal] = {}
        for key in config.keys:
            principal = self._named.pop(key.name, None) or Principal(key.name)
            named[key.name] = principal
            principal.grant = key.grant
            # Clients with a key may do what clients without credentials may do.
            self._add_anonymous_rights(principal)
            self._by_digest |= dict.fromkeys(key.digests, principal)
        for withdrawn in self._named.values():
            withdrawn.grant = NOTHING
        self._named = named
        issuers = {issuer.issuer for issuer in config.issuers}
        for (issuer_name, _, roles), principal in list(self._of_tokens.items()):
            self._set_token_grant(principal, roles if issuer_name in issuers else frozenset())
        self._by_api_key.clear()
        self._by_authorization.clear()

    def identify(self, credentials: Credentials) -> Principal:
        """Return the principal of a call.

        Raises CallRefused if the credentials are missing or invalid, or too many invalid tokens
        came.
        """
        api_key, authorization, peer = credentials
        if api_key is not None:
            credential, known = api_key, self._by_api_key
        elif authorization is not None:
            credential, known = authorization, self._by_authorization
        else:
            if self._config.anonymous is None:
                raise CallRefused(NO_CREDENTIALS)
            return self.anonymous
        remembered = known.get(credential)
        if remembered is not None:
            principal, expires_at = remembered
            if expires_at is None or self._epoch_s() < expires_at:
                return principal
            del known[credential]
        text = credential.decode("latin-1") if isinstance(credential, bytes) else credential
        if api_key is None:
            if text[: len(_BEARER)].lower() != _BEARER:
                raise CallRefused(INVALID_CREDENTIALS, "the Authorization header is no Bearer")
            text = text[len(_BEARER) :].strip()
            if self._verifier is not None and text.count(".") == 2:
                principal, expires_at = self._verify_token(self._verifier, text, peer)
                known.remember(credential, (principal, expires_at))
                return principal
        # The look-up is by digest, so its duration reveals nothing about valid keys.
        key_principal = self._by_digest.get(digest_of(text))
        if key_principal is None:
            raise CallRefused(INVALID_CREDENTIALS, "unknown API key")
        known.remember(credential, (key_principal, None))
        return key_principal

    def _verify_token(
        self, verifier: TokenVerifier, token: str, peer: str
    ) -> tuple[Principal, float]:
        address = client_of(peer)
        invalid = self._invalid_tokens.get(address)
        if invalid is None:
            invalid = self._invalid_tokens.remember(address, Usage())
        if invalid.wait_s(_INVALID_TOKENS, self._now()):
            raise CallRefused(TOO_MANY_ATTEMPTS)
        try:
            verified = verifier.verify(token)
        except InvalidTokenError as error:
            raise CallRefused(error.refusal, f"invalid token: {error}") from error
        invalid.give_back()
        return self._principal_of(verified), verified.expires_at

    def _principal_of(self, token: VerifiedToken) -> Principal:
        # Roles are part of the identity: a token with few roles must not get the rights of another
        # token of its subject.
        roles = token.roles.intersection(self._config.roles)
        identity = token.issuer, token.subject, roles
        principal = self._of_tokens.get(identity)
        if principal is None:
            self._drop_idle_principals()
            name = token.subject or token.issuer
            # This identity has no roles, because all tokens of a subject share the subject's
            # sequences.
            principal = Principal(name, identity=("token", token.issuer, token.subject))
            self._of_tokens[identity] = principal
            self._set_token_grant(principal, roles)
        return principal

    def _set_token_grant(self, principal: Principal, roles: frozenset[str]) -> None:
        known = self._config.roles
        principal.grant = union(known[role] for role in sorted(roles) if role in known)
        self._add_anonymous_rights(principal)

    def _add_anonymous_rights(self, principal: Principal) -> None:
        """Add the rights of anonymous clients, because credentials must not reduce rights."""
        anonymous = self._config.anonymous
        if anonymous is not None:
            grant = principal.grant
            principal.grant = replace(grant, permissions=grant.permissions + anonymous.permissions)

    def _drop_idle_principals(self) -> None:
        """Drop idle principals. Another limit bounds those with requests in flight."""
        if len(self._of_tokens) < _MAX_TOKEN_PRINCIPALS:
            return
        now = self._now()
        idle = (
            identity
            for identity, principal in self._of_tokens.items()
            if principal.usage.is_idle(principal.grant.limits, now)
        )
        for identity in list(islice(idle, _MAX_TOKEN_PRINCIPALS // 4)):
            del self._of_tokens[identity]
