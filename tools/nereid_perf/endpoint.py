"""Address and protocol of a server, used by the parent process and the worker processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from nereid.rpc.net.tls_files import Tls, TlsFiles

Protocol = Literal["http", "grpc"]

_ALPN: Final[dict[str, str]] = {"http": "http/1.1", "grpc": "h2"}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS files in PEM; "" means no file. server_name: the certificate's, if not the host."""

    root: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Port of a server for one protocol; tls `None` means no encryption.

    address: host:port, [v6]:port or unix:/path. headers: sent with each request (over gRPC as
    metadata).
    """

    protocol: Protocol
    address: str
    tls: TlsSettings | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def client_tls(self) -> Tls | None:
        """Return the TLS context, or `None`; raise OSError if a file cannot be used."""
        if self.tls is None:
            return None
        files = TlsFiles(
            cert=self.tls.cert,
            key=self.tls.key,
            root=self.tls.root,
            alpn=_ALPN[self.protocol],
        )
        return Tls(files, server=False, server_name=self.tls.server_name or None)
