"""Certificates of a test's own authority, as PEM files for flags."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Identity:
    """One certificate chain with its key."""

    cert: str
    key: str


class Authority:
    """Signs identities; its own certificate is `root`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.root = str(folder / "root.pem")
        self._authority.cert_pem.write_to_path(self.root)

    def identity(self, *names: str, files: str = "server") -> Identity:
        """A certificate in files of this name, which are replaced if they exist."""
        leaf = self._authority.issue_cert(*(names or ("localhost", "127.0.0.1")))
        identity = Identity(
            str(self._folder / f"{files}.pem"), str(self._folder / f"{files}-key.pem")
        )
        Path(identity.cert).write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(identity.key)
        settle(identity)
        return identity


def settle(identity: Identity, age_s: float = 60.0) -> None:
    """Backdate the files, as if they had been written a while ago."""
    then = time.time() - age_s
    for path in (identity.cert, identity.key):
        os.utime(path, (then, then))
