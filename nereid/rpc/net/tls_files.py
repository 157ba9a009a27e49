"""TLS from PEM files that may change while the process runs.

Every handshake uses the current files. Files younger than a second are not read yet, because their
writer may not be done. If new files are unusable, the previous contents stay in use.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger(__name__)

# Hint if a server closes the connection without a TLS alert.
REFUSED: Final = ": has the server refused our certificate?"
_SETTLED_S: Final = 1.0
_SOURCE_LINE: Final = re.compile(r" \(_ssl\.c:\d+\)$")


class Pems(NamedTuple):
    """Contents of the PEM files; b"" for a file that is not given."""

    cert: bytes
    key: bytes
    root: bytes


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """Paths of our certificate, its key, and the trusted authorities; "" means no file.

    Where `root` has revocation lists beside certificates, a peer whose certificate is on its
    authority's list, or whose authority has no current list there, is refused.
    """

    cert: str = ""
    key: str = ""
    root: str = ""
    # The only application protocol.
    alpn: str

    @property
    def given(self) -> tuple[str, ...]:
        """Paths that are not empty."""
        return tuple(path for path in (self.cert, self.key, self.root) if path)

    def server_context(self) -> ssl.SSLContext:
        """Return a server's context; raises OSError. With `root`, clients need a certificate."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if self.root:
            context.load_verify_locations(self.root)
            context.verify_mode = ssl.CERT_REQUIRED
        return self._completed(context)

    def client_context(self) -> ssl.SSLContext:
        """Return a client's context; raises OSError. No `root` means the system's authorities."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.root or None)
        return self._completed(context)

    def _completed(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Newer Pythons refuse certificates that other TLS libraries (grpcio) accept.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.root and context.cert_store_stats()["crl"]:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        context.set_alpn_protocols([self.alpn])
        if self.cert:
            # The empty password keeps OpenSSL from asking on the terminal.
            context.load_cert_chain(self.cert, self.key or None, password="")
        return context


class FileVersion(NamedTuple):
    """Values that differ when a file has changed; zeros for a missing file."""

    device: int = 0
    inode: int = 0
    size_bytes: int = 0
    modified_ns: int = 0

    @classmethod
    def of(cls, path: str) -> FileVersion:
        """Return the version of a file."""
        try:
            status = os.stat(path)  # noqa: PTH116 (at every handshake, and a path given as text)
        except OSError:
            return cls()
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def settled(self) -> bool:
        """Return whether the writer is probably done. The file's clock may be ahead of ours."""
        return abs(time.time() - self.modified_ns / 1e9) > _SETTLED_S


class _Loaded(NamedTuple):
    context: ssl.SSLContext
    pems: Pems


class Tls:
    """TLS settings of a server or client. Any thread may call context() for each handshake."""

    def __init__(
        self,
        files: TlsFiles,
        *,
        server: bool,
        server_name: str | None = None,
        handshake_timeout_s: float = 10.0,
    ) -> None:
        """Read the files; raise OSError if they cannot be used.

        server_name is the name that a client expects in the certificate, if it is not the address's
        host. handshake_timeout_s is a server's limit for a client's handshake.
        """
        self.server_name = server_name
        self.handshake_timeout_s = handshake_timeout_s
        self._files = files
        self._server = server
        self._lock = threading.Lock()
        self._read_versions = self._versions()
        self._loaded = self._load()

    @property
    def mutual(self) -> bool:
        """True if clients of this server have to show a certificate."""
        return bool(self._files.root)

    def context(self) -> ssl.SSLContext:
        """Return the context for a handshake, from the current files."""
        return self._current().context

    def pems(self) -> Pems:
        """Return the current PEM contents, for engines with their own TLS library."""
        return self._current().pems

    def _current(self) -> _Loaded:
        with self._lock:
            versions = self._versions()
            if versions != self._read_versions and all(version.settled() for version in versions):
                self._read_versions = versions
                paths = ", ".join(self._files.given)
                try:
                    self._loaded = self._load()
                    _log.info("TLS files were read again: %s", paths)
                except OSError as error:
                    text = "TLS files changed and cannot be used, keeping the old: %s: %s"
                    _log.warning(text, paths, reason(error))
            return self._loaded

    def _load(self) -> _Loaded:
        files = self._files
        paths = files.cert, files.key, files.root
        # The TLS library's errors do not name a missing file.
        pems = Pems(*(Path(path).read_bytes() if path else b"" for path in paths))
        context = files.server_context() if self._server else files.client_context()
        return _Loaded(context, pems)

    def _versions(self) -> tuple[FileVersion, ...]:
        return tuple(map(FileVersion.of, self._files.given))


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the DNS names in a peer's certificate, or its common name if there are none."""
    if not certificate:
        return ()
    names = tuple(name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS")
    subject = (field for fields in certificate.get("subject", ()) for field in fields)
    return names or tuple(name for kind, name in subject if kind == "commonName")


def reason(error: Exception) -> str:
    """Return why TLS failed, for a log."""
    return _SOURCE_LINE.sub("", str(error)) or type(error).__name__
