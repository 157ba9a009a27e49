"""Where a server is and how it is spoken to; what parent and workers are both told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from nereid.rpc.net.tls_files import Tls, TlsFiles

Protocol = Literal["http", "grpc"]

_ALPN: Final[dict[str, str]] = {"http": "http/1.1", "grpc": "h2"}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files; "" where there is none. server_name: the certificate's, if not the address's."""

    root: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's port of one protocol. address: host:port, [v6]:port or unix:/path.

    tls: None: in clear. headers: sent with each request, over gRPC as metadata.
    """

    protocol: Protocol
    address: str
    tls: TlsSettings | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def client_tls(self) -> Tls | None:
        """None: in clear. Raises OSError for files that cannot be used."""
        if self.tls is None:
            return None
        files = TlsFiles(
            cert=self.tls.cert,
            key=self.tls.key,
            root=self.tls.root,
            alpn=_ALPN[self.protocol],
        )
        return Tls(files, server=False, server_name=self.tls.server_name or None)
