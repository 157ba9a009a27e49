"""The mesh's token, and the tokens of single roles, which are derived from it.

A role's token serves this role only. A token is never sent.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from typing import Final

from nereid.mesh_auth.roles import Role

# A short token could be found by trying tokens against an overheard credential.
_MIN_LENGTH: Final = 16
_NEW_BYTES: Final = 32
_KEY_BYTES: Final = 32
_ROLE_PREFIX: Final = "nereid-role-"
_LABEL: Final = b"nereid mesh role v1 "
_SECRET_LABEL: Final = b"nereid mesh secret v1 "


class MeshToken:
    """The token of a mesh, or the token of one role."""

    def __init__(self, text: str) -> None:
        """Read a token; raise ValueError, which does not show the text, if it is none."""
        self._master = b""
        self.text = text
        # The role of a role's token; `None` for the mesh's own token.
        self.only: Role | None = None
        if text.startswith(_ROLE_PREFIX):
            self.only, self._only_key = _read_role_token(text)
        elif len(text) < _MIN_LENGTH:
            raise ValueError(
                f"a mesh token has at least {_MIN_LENGTH} characters; `nereid mesh-token` makes one"
            )
        else:
            self._master = text.encode()

    def key(self, role: Role) -> bytes | None:
        """Return the key of a role; `None` if this is the token of another role."""
        if self.only is not None:
            return self._only_key if role is self.only else None
        return hmac.digest(self._master, _LABEL + role.value.encode(), "sha256")

    def secret(self, purpose: str) -> bytes:
        """Return a secret for one purpose; empty if this is the token of a role."""
        if self.only is not None:
            return b""
        return hmac.digest(self._master, _SECRET_LABEL + purpose.encode(), "sha256")

    def role_token(self, role: Role) -> str:
        """Return the token of one role; raise ValueError if this is the token of another role."""
        key = self.key(role)
        if key is None:
            raise ValueError(f"a role's token makes no other: only the mesh's own makes {role}'s")
        text = base64.urlsafe_b64encode(key).rstrip(b"=").decode()
        return f"{_ROLE_PREFIX}{role.value}-{text}"


def new_token() -> str:
    """Return a random token for a new mesh."""
    return secrets.token_urlsafe(_NEW_BYTES)


def _read_role_token(text: str) -> tuple[Role, bytes]:
    name, _, encoded = text.removeprefix(_ROLE_PREFIX).partition("-")
    try:
        role = Role(name)
        key = base64.b64decode(encoded + "=", altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != _KEY_BYTES:
        raise ValueError("it begins as a role's token but is not one; was it cut?")
    return role, key
