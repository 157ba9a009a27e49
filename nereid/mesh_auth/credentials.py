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
    from collections.abc import Callable, Iterable

    from nereid.mesh_auth.tokens import MeshToken

AUTH_KEY: Final = "nereid-mesh-auth"
# Maximum difference between clocks. A nonce is remembered for this time.
WINDOW_S: Final = 30.0
_VERSION: Final = "v1"
_NONCE_BYTES: Final = 12
_MAX_NONCES: Final = 1 << 17
_MAX_TIME: Final = 15
# A clock that is slewed is within this of a steady one.
_JUMP_S: Final = 5.0


class CredentialError(Exception):
    """Error for a refused credential. If it is transient, a new credential may be accepted."""

    def __init__(self, reason: str, *, transient: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.transient = transient


class Credentials:
    """Creates the credentials of one role. Any thread may use it."""

    def __init__(
        self,
        role: Role,
        key: bytes | Callable[[], bytes],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """key: of the role; a function returns the present one."""
        self._role = role.value
        self._key = key
        self._clock = clock

    def metadata(self, path: str) -> tuple[tuple[str, str], ...]:
        """Return the metadata for one call; each call needs metadata of its own."""
        nonce = base64.urlsafe_b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
        claim = f"{_VERSION} {self._role} {int(self._clock() * 1000)} {nonce}"
        key = self._key if isinstance(self._key, bytes) else self._key()
        return ((AUTH_KEY, f"{claim} {_mac(key, claim, path)}"),)


class CredentialVerifier:
    """Verifies credentials of all roles whose keys follow from the tokens, in one event loop."""

    def __init__(
        self,
        token: MeshToken,
        clock: Callable[[], float] = time.time,
        max_nonces: int = _MAX_NONCES,
    ) -> None:
        self.accept((token,))
        self._clock = clock
        self._max_nonces = max_nonces
        # Key: a nonce within the window. Value: when its credential was made. Oldest arrival first.
        self._nonces: dict[str, float] = {}
        # Nonces of credentials whose time is yet to come, since the clock was set back.
        self._future: dict[str, float] = {}
        self._begin(clock())

    def accept(self, tokens: Iterable[MeshToken]) -> None:
        """Accept credentials made with any of these tokens, and with no other."""
        self._keys: dict[str, list[bytes]] = {role.value: [] for role in Role}
        for token in tokens:
            for role in Role:
                if (key := token.key(role)) is not None:
                    self._keys[role.value].append(key)

    def verify(self, text: str, path: str) -> Role:
        """Use up a credential and return its role, or raise CredentialError."""
        parts = text.split(" ")
        if len(parts) != 5 or parts[0] != _VERSION or not parts[2].isdecimal():
            raise CredentialError("its credential is malformed; is it of another release?")
        _, name, stamp, nonce, mac = parts
        claim = text.rpartition(" ")[0]
        if len(stamp) > _MAX_TIME or not any(
            hmac.compare_digest(mac.encode(), _mac(key, claim, path).encode())
            for key in self._keys.get(name, ())
        ):
            raise CredentialError("its credential was made with another token (--mesh-token)")
        self._notice_jump()
        self._check_time(int(stamp) / 1000)
        if nonce in self._nonces or nonce in self._future:
            raise CredentialError("its credential was used before: a replay")
        self._remember(nonce, int(stamp) / 1000)
        return Role(name)

    def _begin(self, now: float) -> None:
        """Accept credentials that are made from now on."""
        self._offset = now - time.monotonic()
        # Credentials from before this time are refused, because their nonces may be forgotten.
        self._not_before = int(now * 1000) / 1000

    def _notice_jump(self) -> None:
        """Begin anew if the clock has jumped.

        Otherwise credentials would be good again when it comes back, and a clock that was ahead
        would close the mesh until it is there again. After it was set back by more than the window,
        credentials that were used at the present time before are good once more.
        """
        now = self._clock()
        offset = now - time.monotonic()
        if abs(offset - self._offset) <= _JUMP_S:
            self._offset = offset
            return
        used = self._future | self._nonces
        self._future = {nonce: made for nonce, made in used.items() if made >= now - WINDOW_S}
        while len(self._future) > self._max_nonces:
            del self._future[next(iter(self._future))]
        self._nonces.clear()
        self._begin(now)

    def _check_time(self, made: float) -> None:
        ahead = made - self._clock()
        if abs(ahead) > WINDOW_S:
            way = "ahead of" if ahead > 0 else "behind"
            raise CredentialError(
                f"its clock differs: it is {abs(ahead):.0f} s {way} this one, and clocks of a mesh"
                f" may differ by {WINDOW_S:.0f} s"
            )
        if made < self._not_before:
            raise CredentialError("its credential is from before this start", transient=True)

    def _remember(self, nonce: str, made: float) -> None:
        nonces = self._nonces
        nonces[nonce] = made
        expired = self._clock() - WINDOW_S
        while nonces:
            oldest = next(iter(nonces))
            if len(nonces) <= self._max_nonces and nonces[oldest] >= expired:
                break
            # A clock that is set back a little must not make it good again.
            self._not_before = max(self._not_before, nonces[oldest] + 0.001)
            del nonces[oldest]


def _mac(key: bytes, claim: str, path: str) -> str:
    digest = hmac.digest(key, f"{claim} {path}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
