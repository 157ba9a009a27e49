"""The guard of a mesh port, which refuses calls that the caller's role may not make.

A refused call ends as soon as the call's headers have arrived. The caller's roles depend on what is
configured:

    configured      the caller's roles
    token           the role of the caller's credential; certificates do not count
    mTLS alone      the roles that the caller's certificate names; all roles on unix sockets
    neither         no guard: services may listen only on loopback and unix sockets
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nereid.mesh_auth.credentials import AUTH_KEY, CredentialError, CredentialVerifier
from nereid.mesh_auth.roles import Role, method_roles, roles_of_names
from nereid.observability.refusal_log import RefusalLog
from nereid.rpc import RpcError, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.mesh_auth.tokens import MeshToken
    from nereid.rpc import Call, Handlers

_log = logging.getLogger(__name__)

_NO_CREDENTIAL: Final = (
    "this mesh port requires a token: give the caller --mesh-token or --mesh-token-file"
)
_NAMELESS: Final = (
    "its certificate names no role: the first label of a DNS name must begin with"
    f" {', '.join(role.value for role in Role)}, or the port needs --mesh-tls-any-role"
)
_REFUSED: Final = "%s: a call of %s was refused: %s"
_ALL: Final = frozenset(Role)


@dataclass(frozen=True)
class GuardRules:
    """Requirements of a mesh port. Without a token, only the caller's certificate decides."""

    token: MeshToken | None
    # Without a token, true means that any certificate gives every role.
    any_certificate: bool = False
    # True if executors may load and unload models; see roles.method_roles.
    executor_control: bool = False
    # The tokens that are accepted at present, where they may change.
    tokens: Callable[[], tuple[MeshToken, ...]] | None = None


class Guard:
    """Guard of one mesh port, for use by one event loop."""

    def __init__(self, rules: GuardRules) -> None:
        self._verifier = None if rules.token is None else CredentialVerifier(rules.token)
        self._tokens = rules.tokens
        self._accepted: tuple[MeshToken, ...] = ()
        self._any_certificate = rules.any_certificate
        self._roles = method_roles(executor_control=rules.executor_control)
        self._refusals = RefusalLog(_log)

    def guarded(self, handlers: Handlers) -> Handlers:
        """Return these handlers behind the guard; raise KeyError if a method has no roles."""
        for path in (*handlers.unary, *handlers.async_unary, *handlers.stream):
            self._roles[path]
        return replace(handlers, admit=self.check)

    def check(self, call: Call) -> None:
        """Raise RpcError if the caller may not make this call, and log a refusal."""
        try:
            roles = self._roles_of(call)
            allowed = self._roles[call.path]
            if roles.isdisjoint(allowed):
                raise RpcError(Status.PERMISSION_DENIED, _wrong_role(roles, allowed))
        except RpcError as error:
            kind, method = error.message.partition(":")[0], call.path.rpartition("/")[2]
            self._refusals.report(call.peer, kind, _REFUSED, method, error.message)
            raise

    def _roles_of(self, call: Call) -> frozenset[Role]:
        if self._verifier is not None:
            return frozenset({self._proven_role(self._verifier, call)})
        if self._any_certificate or call.peer.startswith("unix:"):
            return _ALL
        named = roles_of_names(call.peer_names)
        if not named:
            raise RpcError(Status.PERMISSION_DENIED, _NAMELESS)
        return named

    def _proven_role(self, verifier: CredentialVerifier, call: Call) -> Role:
        credential = call.get(AUTH_KEY)
        if not isinstance(credential, str):
            raise RpcError(Status.UNAUTHENTICATED, _NO_CREDENTIAL)
        if self._tokens is not None and (tokens := self._tokens()) is not self._accepted:
            self._accepted = tokens
            verifier.accept(tokens)
        try:
            return verifier.verify(credential, call.path)
        except CredentialError as error:
            status = Status.UNAVAILABLE if error.transient else Status.UNAUTHENTICATED
            raise RpcError(status, error.reason) from error


def guarded(handlers: Handlers, rules: GuardRules | None) -> Handlers:
    """Return these handlers behind a guard with these rules; `None` means no guard."""
    return handlers if rules is None else Guard(rules).guarded(handlers)


def _wrong_role(roles: frozenset[Role], allowed: frozenset[Role]) -> str:
    has = " or ".join(sorted(role.value for role in roles))
    needs = " or ".join(sorted(role.value for role in allowed))
    return f"the caller's role is {has}, and this method is for {needs}"
