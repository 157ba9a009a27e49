"""TLS from PEM files that may change while a process runs.

Every handshake asks for the files as they are by then, so a certificate is renewed by replacing its
files and no connection notices. Files that were written within the last second are left alone, for
their writer may not be done; what cannot be used is told once, and what was read before stays.
Knows no sockets.
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
from typing import Final, NamedTuple

_log = logging.getLogger(__name__)

# What a client says when its server hangs up without a word, as event loops do that refuse one.
REFUSED: Final = ": has the server refused our certificate?"
_SETTLED_S: Final = 1.0
_SOURCE_LINE: Final = re.compile(r" \(_ssl\.c:\d+\)$")


class Pems(NamedTuple):
    """The files' contents; of a file that is not given, nothing."""

    cert: bytes
    key: bytes
    root: bytes


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """Which files say who we are and whom we believe; "" where there is none."""

    cert: str = ""
    key: str = ""
    root: str = ""
    # The one protocol to agree on.
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
        """Without a root, the system's authorities are believed. Raises OSError."""
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


class _Seen(NamedTuple):
    """By what a file is told from a changed one; zeros for one that is not there."""

    device: int = 0
    inode: int = 0
    size_bytes: int = 0
    modified_ns: int = 0

    @classmethod
    def of(cls, path: str) -> _Seen:
        try:
            found = os.stat(path)  # noqa: PTH116 (at every handshake, and a path given as text)
        except OSError:
            return cls()
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def settled(self) -> bool:
        """Whether its writer is done, as far as that can be told; a clock may also be ahead."""
        return abs(time.time() - self.modified_ns / 1e9) > _SETTLED_S


class _Loaded(NamedTuple):
    context: ssl.SSLContext
    pems: Pems


class Tls:
    """One side's TLS. context() is for each handshake anew, from any thread."""

    def __init__(self, files: TlsFiles, *, server: bool, server_name: str | None = None) -> None:
        """server_name: for a client, the name to look for in a certificate, if not the address's.

        Raises:
            OSError: the files cannot be used.
        """
        self.server_name = server_name
        self._files = files
        self._server = server
        self._lock = threading.Lock()
        self._seen = self._look()
        self._loaded = self._load()

    @property
    def mutual(self) -> bool:
        """For a server: whether clients have to show a certificate."""
        return bool(self._files.root)

    def context(self) -> ssl.SSLContext:
        return self._current().context

    def pems(self) -> Pems:
        """For engines that do their TLS themselves."""
        return self._current().pems

    def _current(self) -> _Loaded:
        with self._lock:
            seen = self._look()
            if seen != self._seen and all(each.settled() for each in seen):
                self._seen = seen
                paths = ", ".join(self._files.given)
                try:
                    self._loaded = self._load()
                    _log.info("TLS files were read again: %s", paths)
                except OSError as error:
                    told = "TLS files changed and cannot be used, the old stay: %s: %s"
                    _log.warning(told, paths, reason(error))
            return self._loaded

    def _load(self) -> _Loaded:
        files = self._files
        paths = files.cert, files.key, files.root
        # First of all: unlike the TLS library, it tells which file is missing.
        pems = Pems(*(Path(path).read_bytes() if path else b"" for path in paths))
        context = files.server_context() if self._server else files.client_context()
        return _Loaded(context, pems)

    def _look(self) -> tuple[_Seen, ...]:
        return tuple(map(_Seen.of, self._files.given))


def reason(error: Exception) -> str:
    """Why a handshake failed or files were refused, for a log."""
    return _SOURCE_LINE.sub("", str(error)) or type(error).__name__
