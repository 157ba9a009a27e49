"""Certificates of a test's own authority, as PEM files for flags."""

from __future__ import annotations

import datetime as dt
import os
import time
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID


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

    def identity(
        self, *names: str, files: str = "server", valid_days: tuple[int, int] = (-1, 30)
    ) -> Identity:
        """A certificate in files of this name, which are replaced if they exist.

        valid_days: the first and the last day of its validity, from now.
        """
        now = dt.datetime.now(dt.UTC)
        first, last = (now + dt.timedelta(days=each) for each in valid_days)
        leaf = self._authority.issue_cert(
            *(names or ("localhost", "127.0.0.1")), not_before=first, not_after=last
        )
        identity = Identity(
            str(self._folder / f"{files}.pem"), str(self._folder / f"{files}-key.pem")
        )
        Path(identity.cert).write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(identity.key)
        settle(identity)
        return identity

    def revoke(self, *identities: Identity, days: int = 7) -> bytes:
        """Return a list of what is revoked, as PEM. days: until it is outdated."""
        key = load_pem_private_key(self._authority.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        issuer = x509.load_pem_x509_certificate(self._authority.cert_pem.bytes()).subject
        now = dt.datetime.now(dt.UTC)
        revoked = x509.CertificateRevocationListBuilder(issuer)
        revoked = revoked.last_update(now - dt.timedelta(days=30))
        revoked = revoked.next_update(now + dt.timedelta(days=days))
        for identity in identities:
            leaf = x509.load_pem_x509_certificates(Path(identity.cert).read_bytes())[0]
            entry = x509.RevokedCertificateBuilder().serial_number(leaf.serial_number)
            revoked = revoked.add_revoked_certificate(entry.revocation_date(now).build())
        return revoked.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def rsa_identity(folder: Path, bits: int) -> Identity:
    """A certificate that signs itself, with an RSA key: dear to sign with."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    identity = Identity(str(folder / "rsa.pem"), str(folder / "rsa-key.pem"))
    Path(identity.cert).write_bytes(certificate.public_bytes(Encoding.PEM))
    Path(identity.key).write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return identity


def settle(identity: Identity, age_s: float = 60.0) -> None:
    """Backdate the files, as if they had been written a while ago."""
    then = time.time() - age_s
    for path in (identity.cert, identity.key):
        os.utime(path, (then, then))
