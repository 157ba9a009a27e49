"""Credentials of calls within the mesh. A credential proves that the caller has a role's key.

    nereid-mesh-auth: v1 <role> <Unix time in ms> <nonce> <HMAC-SHA256 over these and the method>

A credential is accepted once, for one method, if the clocks differ by at most 30 s. An executor can
give it to a worker and keep the key. Only TLS hides the call and proves who the server is.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import time
from typing import TYPE_CHECKING, Final

from nereid.mesh_auth.roles import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.mesh_auth.tokens import MeshToken

AUTH_KEY: Final = "nereid-mesh-auth"
# Maximum difference between clocks. A nonce is remembered for this time.
WINDOW_S: Final = 30.0
# A clock that loses more than this between two credentials was set back.
_SET_BACK_S: Final = 0.5
_VERSION: Final = "v1"
_NONCE_BYTES: Final = 12
_MAX_NONCES: Final = 1 << 17
_MAX_TIME: Final = 15


class CredentialError(Exception):
    """Error for a refused credential. If it is transient, a new credential may be accepted."""

    def __init__(self, reason: str, *, transient: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.transient = transient


class Credentials:
    """Creates the credentials of one role. Any thread may use it."""

    def __init__(self, role: Role, key: bytes, clock: Callable[[], float] = time.time) -> None:
        self._role = role.value
        self._key = key
        self._clock = clock

    def metadata(self, path: str) -> tuple[tuple[str, str], ...]:
        """Return the metadata for one call; each call needs metadata of its own."""
        nonce = base64.urlsafe_b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
        claim = f"{_VERSION} {self._role} {int(self._clock() * 1000)} {nonce}"
        return ((AUTH_KEY, f"{claim} {_mac(self._key, claim, path)}"),)


class CredentialVerifier:
    """Verifies credentials of all roles whose keys follow from the token, in one event loop."""

    def __init__(
        self,
        token: MeshToken,
        clock: Callable[[], float] = time.time,
        max_nonces: int = _MAX_NONCES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        keys = {role.value: token.key(role) for role in Role}
        self._keys = {name: key for name, key in keys.items() if key is not None}
        self._clock = clock
        self._monotonic = monotonic
        self._ahead_s = clock() - monotonic()
        self._max_nonces = max_nonces
        # Key: a nonce within the window. Value: when its credential was made. Oldest arrival first.
        self._nonces: dict[str, float] = {}
        # Credentials from before this time are refused, because their nonces may be forgotten.
        self._not_before = int(clock() * 1000) / 1000

    def verify(self, text: str, path: str) -> Role:
        """Use up a credential and return its role, or raise CredentialError."""
        parts = text.split(" ")
        if len(parts) != 5 or parts[0] != _VERSION or not parts[2].isdecimal():
            raise CredentialError("its credential is malformed; is it of another release?")
        _, name, stamp, nonce, mac = parts
        key = self._keys.get(name)
        claim = text.rpartition(" ")[0]
        if (
            key is None
            or len(stamp) > _MAX_TIME
            or not hmac.compare_digest(mac.encode(), _mac(key, claim, path).encode())
        ):
            raise CredentialError("its credential was made with another token (--mesh-token)")
        self._check_time(int(stamp) / 1000)
        if nonce in self._nonces:
            raise CredentialError("its credential was used before: a replay")
        self._remember(nonce, int(stamp) / 1000)
        return Role(name)

    def _check_time(self, made: float) -> None:
        self._follow_clock()
        ahead = made - self._clock()
        if abs(ahead) > WINDOW_S:
            way = "ahead of" if ahead > 0 else "behind"
            raise CredentialError(
                f"its clock differs: it is {abs(ahead):.0f} s {way} this one, and clocks of a mesh"
                f" may differ by {WINDOW_S:.0f} s"
            )
        if made < self._not_before:
            raise CredentialError("its credential is from before this start", transient=True)

    def _follow_clock(self) -> None:
        """Begin anew, as at a start, if the clock was set back; else all would wait for hours."""
        now = self._clock()
        before, self._ahead_s = self._ahead_s, now - self._monotonic()
        if before - self._ahead_s > _SET_BACK_S:
            self._not_before = now
            self._nonces = {
                nonce: made for nonce, made in self._nonces.items() if made - now <= WINDOW_S
            }

    def _remember(self, nonce: str, made: float) -> None:
        nonces = self._nonces
        nonces[nonce] = made
        expired = self._clock() - WINDOW_S
        while nonces:
            oldest = next(iter(nonces))
            if len(nonces) > self._max_nonces:
                self._not_before = max(self._not_before, nonces[oldest] + 0.001)
            elif nonces[oldest] >= expired:
                break
            del nonces[oldest]


def _mac(key: bytes, claim: str, path: str) -> str:
    digest = hmac.digest(key, f"{claim} {path}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
