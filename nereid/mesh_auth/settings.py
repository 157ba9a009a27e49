"""The flags for access to mesh ports, which all services share, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from nereid.config.flags import Topic, boolean, flag
from nereid.config.hardened import HardenedSettings
from nereid.config.mesh_tls import MeshTlsSettings
from nereid.mesh_auth.credentials import Credentials
from nereid.mesh_auth.guard import GuardRules
from nereid.mesh_auth.token_file import TokenFile, read_tokens
from nereid.mesh_auth.tokens import MeshToken
from nereid.rpc.net.address import is_local, unix_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.mesh_auth.roles import Role
    from nereid.rpc import ChannelOptions


@dataclass(frozen=True, kw_only=True)
class MeshAccessSettings(MeshTlsSettings, HardenedSettings):
    """The flags for access between services; every service's settings have these flags."""

    TOPIC: ClassVar = Topic.MESH
    # Roles whose tokens suffice for this service. If empty, it needs the mesh's own token.
    MESH_ROLES: ClassVar[frozenset[Role]] = frozenset()

    mesh_token: str = flag(
        "",
        "the secret that the services of one mesh share, or one role's token (nereid mesh-token)",
        secret=True,
    )
    mesh_token_file: str = flag(
        "",
        "a file whose first line is the --mesh-token; a service that listens accepts those of lines"
        " 'accept TOKEN' as well; read again when it changes",
    )
    mesh_tls_any_role: bool = flag(
        False,
        "where a service listens with --mesh-tls-root and no token, accept every certificate for"
        " every role, whatever it names",
        boolean,
        bare="true",
    )

    def mesh_errors(self, listening: Iterable[str] = ()) -> list[str]:
        """Return the errors in these flags for a service that listens at these addresses."""
        listening = tuple(listening)
        errors = self.mesh_tls_errors(listening)
        try:
            token = self.read_mesh_token()
        except ValueError as error:
            return [*errors, str(error)]
        if token is not None and token.only is not None and token.only not in self.MESH_ROLES:
            roles = " or ".join(sorted(role.value for role in self.MESH_ROLES))
            wanted = f"the mesh's own or that of {roles}" if roles else "the mesh's own"
            errors.append(
                f"--mesh-token is the token of the role {token.only.value}; this service needs"
                f" {wanted}"
            )
        if token is None and not self.mesh_tls_root:
            errors += filter(None, map(self._open_port_error, listening))
        return errors

    def _open_port_error(self, address: str) -> str:
        remedy = "set --mesh-token-file (`nereid mesh-token` makes a token) or --mesh-tls-root"
        harm = "whoever connects there could load models and forge responses"
        if not is_local(address):
            return (
                f"{address} can be reached from other machines, and {harm}: {remedy}, or listen on"
                " 127.0.0.1"
            )
        if self.hardened and unix_path(address) is None:
            return (
                f"{address} can be reached by all users of this machine, and {harm}: {remedy}, or"
                " listen on a unix socket"
            )
        return ""

    def read_mesh_token(self) -> MeshToken | None:
        """Return the token, or `None` if none is given; see read_mesh_tokens."""
        return next(iter(self.read_mesh_tokens()), None)

    def read_mesh_tokens(self) -> tuple[MeshToken, ...]:
        """Return the token, and the others that are accepted.

        Raises ValueError for an unusable token or file; the message does not show the token.
        """
        if self.mesh_token_file:
            if self.mesh_token:
                raise ValueError("--mesh-token and --mesh-token-file exclude each other")
            return read_tokens(self.mesh_token_file)
        if not self.mesh_token:
            return ()
        try:
            return (MeshToken(self.mesh_token),)
        except ValueError as error:
            raise ValueError(f"--mesh-token: {error}") from error

    def with_present_token(self) -> Self:
        """Return settings with the token in place of its file."""
        token = self.read_mesh_token()
        if token is None or not self.mesh_token_file:
            return self
        return replace(self, mesh_token=token.text, mesh_token_file="")

    def mesh_secret(self, purpose: str) -> bytes:
        """Return a secret for one purpose, or b"" without the mesh's own token.

        All holders of the mesh's own token get the same secret.
        """
        token = self.read_mesh_token()
        return b"" if token is None else token.secret(purpose)

    def mesh_credentials(self, role: Role) -> Credentials | None:
        """Return the credentials for calls with this role; `None` if there is no token for it."""
        token = self.read_mesh_token()
        key = None if token is None else token.key(role)
        if key is None or not self.mesh_token_file:
            return None if key is None else Credentials(role, key)
        file = TokenFile(self.mesh_token_file)
        return Credentials(role, lambda: file.tokens()[0].key(role) or key)

    def mesh_channel(self, address: str, role: Role, options: ChannelOptions) -> ChannelOptions:
        """Return options for calls to an address in this role; may raise OSError."""
        made = self.mesh_credentials(role)
        credentials = None if made is None else made.metadata
        return replace(options, tls=self.mesh_tls_client(address), credentials=credentials)

    @property
    def mesh_private(self) -> bool:
        """True if no token is given. File modes alone then keep other users off unix sockets."""
        return not (self.mesh_token or self.mesh_token_file)

    def mesh_guard(self, *, executor_control: bool = False) -> GuardRules | None:
        """Return the requirements of this service's mesh port; `None` lets any local caller in."""
        token = self.read_mesh_token()
        if token is None and not self.mesh_tls_root:
            return None
        tokens = TokenFile(self.mesh_token_file).tokens if self.mesh_token_file else None
        return GuardRules(token, self.mesh_tls_any_role, executor_control, tokens)

    def mesh_users(self, address: str) -> str:
        """Return a text for the log that says who can use a mesh port at this address."""
        if not self.mesh_private:
            return "services with the mesh token"
        if unix_path(address) is not None:
            return "processes of this user"
        if self.mesh_tls_root:
            return "services with a certificate of --mesh-tls-root"
        return "any process of this machine"
