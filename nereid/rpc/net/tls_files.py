"""TLS from PEM files that may change while a process runs.

Every handshake uses the files as they are by then, so a certificate is renewed by replacing its
files, and no open connection is affected. Files that were written within the last second are not
read yet, as their writer may not be done. Unusable files are logged once, and the old ones are
kept. Knows no sockets.
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

# A client's hint when its server closes the connection instead of sending a TLS alert.
REFUSED: Final = ": has the server refused our certificate?"
_SETTLED_S: Final = 1.0
_SOURCE_LINE: Final = re.compile(r" \(_ssl\.c:\d+\)$")


class Pems(NamedTuple):
    """The files' contents; b"" for a file that is not given."""

    cert: bytes
    key: bytes
    root: bytes


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """Our certificate with its key, and the authorities we trust; "" where there is none."""

    cert: str = ""
    key: str = ""
    root: str = ""
    # The one protocol to negotiate.
    alpn: str

    @property
    def given(self) -> tuple[str, ...]:
        return tuple(path for path in (self.cert, self.key, self.root) if path)

    def server_context(self) -> ssl.SSLContext:
        """With a root, clients must show a certificate. Raises OSError."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if self.root:
            context.load_verify_locations(self.root)
            context.verify_mode = ssl.CERT_REQUIRED
        return self._completed(context)

    def client_context(self) -> ssl.SSLContext:
        """Without a root, the system's authorities are trusted. Raises OSError."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.root or None)
        return self._completed(context)

    def _completed(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Newer Pythons refuse certificates that other TLS libraries, grpcio's among them, take.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.set_alpn_protocols([self.alpn])
        if self.cert:
            # Never ask the terminal for the password of a locked key.
            context.load_cert_chain(self.cert, self.key or None, password="")
        return context


class _FileVersion(NamedTuple):
    """Differs whenever the file has changed; zeros for one that does not exist."""

    device: int = 0
    inode: int = 0
    size_bytes: int = 0
    modified_ns: int = 0

    @classmethod
    def of(cls, path: str) -> _FileVersion:
        try:
            found = os.stat(path)  # noqa: PTH116 (at every handshake, and a path given as text)
        except OSError:
            return cls()
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def settled(self) -> bool:
        """Whether its writer is probably done; its clock may also be ahead of ours."""
        return abs(time.time() - self.modified_ns / 1e9) > _SETTLED_S


class _Loaded(NamedTuple):
    context: ssl.SSLContext
    pems: Pems


class Tls:
    """One side's TLS. Call context() for each handshake; from any thread."""

    def __init__(
        self,
        files: TlsFiles,
        *,
        server: bool,
        server_name: str | None = None,
        handshake_timeout_s: float = 10.0,
    ) -> None:
        """server_name: for a client, the name to expect in a certificate, if not the address's.
        handshake_timeout_s: for a server, when a client that stalls is disconnected.

        Raises:
            OSError: the files cannot be used.
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
        """For a server: whether clients have to show a certificate."""
        return bool(self._files.root)

    def context(self) -> ssl.SSLContext:
        return self._current().context

    def pems(self) -> Pems:
        """For engines with a TLS library of their own."""
        return self._current().pems

    def _current(self) -> _Loaded:
        with self._lock:
            versions = self._versions()
            if versions != self._read_versions and all(each.settled() for each in versions):
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
        # Before the TLS library, whose errors do not name the file that is missing.
        pems = Pems(*(Path(path).read_bytes() if path else b"" for path in paths))
        context = files.server_context() if self._server else files.client_context()
        return _Loaded(context, pems)

    def _versions(self) -> tuple[_FileVersion, ...]:
        return tuple(map(_FileVersion.of, self._files.given))


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The DNS names in a peer's certificate, or its common name if there are none.

    certificate: as ssl.SSLSocket.getpeercert() describes it; None: none was shown.
    """
    if not certificate:
        return ()
    names = tuple(name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS")
    subject = (field for fields in certificate.get("subject", ()) for field in fields)
    return names or tuple(name for kind, name in subject if kind == "commonName")


def reason(error: Exception) -> str:
    """Why a handshake failed or files were refused, for a log."""
    return _SOURCE_LINE.sub("", str(error)) or type(error).__name__
