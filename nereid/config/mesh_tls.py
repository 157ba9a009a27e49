"""TLS between the services, over TCP only. File modes protect unix sockets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from nereid.config.flags import Topic, flag
from nereid.rpc.net.address import unix_path
from nereid.rpc.net.tls_files import Tls, TlsFiles, reason

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALPN: Final = "h2"


@dataclass(frozen=True, kw_only=True)
class MeshTlsSettings:
    """The flags of TLS between services; every service's settings have them."""

    TOPIC: ClassVar = Topic.MESH

    mesh_tls_cert: str = flag(
        "", "PEM file of this service's certificate chain, for TLS between services over TCP"
    )
    mesh_tls_key: str = flag("", "PEM file of the private key to --mesh-tls-cert")
    mesh_tls_root: str = flag(
        "",
        "PEM file of the certificates that sign the other services'; where a service listens,"
        " services that connect must then show such a certificate",
    )
    mesh_tls_server_name: str = flag(
        "", "the name to expect in the certificate of a service to connect to, if not its host"
    )

    def mesh_tls_errors(self, listening: Iterable[str] = ()) -> list[str]:
        """Return the errors in these flags for a service that listens at these addresses."""
        if bool(self.mesh_tls_cert) is not bool(self.mesh_tls_key):
            return ["--mesh-tls-cert and --mesh-tls-key are only of use together"]
        serves = any(unix_path(address) is None for address in listening)
        if self.mesh_tls_root and not self.mesh_tls_cert and serves:
            return ["--mesh-tls-cert and --mesh-tls-key are required to listen with TLS"]
        if self.mesh_tls_server_name and not self.mesh_tls_on:
            return ["--mesh-tls-server-name is of no use without --mesh-tls-root"]
        try:
            _ = self.mesh_tls_client(""), self.mesh_tls_server("")
        except OSError as error:
            return [f"--mesh-tls: the files cannot be used: {reason(error)}"]
        return []

    @property
    def mesh_tls_on(self) -> bool:
        """True if connections over TCP are encrypted."""
        return bool(self.mesh_tls_cert or self.mesh_tls_root)

    def mesh_tls_client(self, address: str) -> Tls | None:
        """Return the TLS side for calls, `None` for clear text; may raise OSError."""
        if not self.mesh_tls_on or unix_path(address) is not None:
            return None
        return Tls(self._files(), server=False, server_name=self.mesh_tls_server_name or None)

    def mesh_tls_server(self, address: str) -> Tls | None:
        """Return the TLS side for a listening address, `None` for clear text; may raise OSError."""
        if not self.mesh_tls_cert or unix_path(address) is not None:
            return None
        return Tls(self._files(), server=True)

    def _files(self) -> TlsFiles:
        return TlsFiles(
            cert=self.mesh_tls_cert, key=self.mesh_tls_key, root=self.mesh_tls_root, alpn=_ALPN
        )
