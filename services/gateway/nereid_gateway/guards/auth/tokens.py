"""Verifies JSON Web Tokens (RFC 7519) with PyJWT, which is imported only if there are issuers.

The configuration gives the keys and algorithms of each issuer. Those that a token names are
ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid_gateway.core.access.refusal import EXPIRED, INVALID_CREDENTIALS
from nereid_gateway.guards.auth.config import AuthConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid_gateway.core.access.refusal import Refusal
    from nereid_gateway.guards.auth.config import Issuer

_MAX_TOKEN_BYTES: Final = 16384
_MAX_SUBJECT: Final = 200
# The subject is the first of these claims that the token has.
_SUBJECT_CLAIMS: Final = ("sub", "client_id", "azp")


class VerifiedToken(NamedTuple):
    """Contents of a valid token."""

    issuer: str
    subject: str
    roles: frozenset[str]
    # Epoch seconds after which the token is not accepted. The leeway is included.
    expires_at: float


class InvalidTokenError(Exception):
    """Raised for a token that is not accepted. It has a refusal and a text for the log."""

    def __init__(self, refusal: Refusal, detail: str) -> None:
        super().__init__(detail)
        self.refusal = refusal


class TokenVerifier:
    """Verifies the tokens of several issuers."""

    def __init__(self, issuers: Iterable[Issuer]) -> None:
        """Read the issuers' keys. Raises AuthConfigError if keys or PyJWT are missing."""
        try:
            # Only gateways with issuers need the package.
            import jwt  # noqa: PLC0415
        except ImportError as error:
            text = "issuers need the package pyjwt: pip install 'nereid-mesh[jwt]'"
            raise AuthConfigError([text]) from error
        self._jwt = jwt
        self._issuers: dict[str, tuple[Issuer, _Keys]] = {}
        errors = []
        for issuer in issuers:
            try:
                self._issuers[issuer.issuer] = issuer, _Keys(jwt, issuer)
            except (OSError, ValueError, TypeError, jwt.PyJWTError) as error:
                reason = getattr(error, "strerror", None) or error
                errors.append(f"{issuer.key_file} of issuer '{issuer.issuer}': {reason}")
        if errors:
            raise AuthConfigError(errors)

    def verify(self, token: str) -> VerifiedToken:
        """Return a token's contents, or raise InvalidTokenError. Verification takes about 50 us."""
        if len(token) > _MAX_TOKEN_BYTES:
            raise InvalidTokenError(INVALID_CREDENTIALS, f"longer than {_MAX_TOKEN_BYTES} bytes")
        jwt = self._jwt
        try:
            unverified = jwt.decode_complete(token, options={"verify_signature": False})
            issuer, keys = self._issuer_of(unverified["payload"].get("iss"))
            claims = jwt.decode(
                token,
                keys.find_key(unverified["header"].get("kid")),
                algorithms=issuer.algorithms,
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=issuer.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
            return VerifiedToken(
                issuer.issuer,
                _subject(claims),
                _roles(claims, issuer.roles_claim),
                float(claims["exp"]) + issuer.leeway_s,
            )
        except InvalidTokenError:
            raise
        except jwt.ExpiredSignatureError as error:
            raise InvalidTokenError(EXPIRED, "expired") from error
        except Exception as error:
            # A malicious token may make the library raise any exception.
            detail = f"{type(error).__name__}: {error}"
            raise InvalidTokenError(INVALID_CREDENTIALS, detail[:200]) from error

    def _issuer_of(self, name: Any) -> tuple[Issuer, _Keys]:
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise InvalidTokenError(INVALID_CREDENTIALS, f"unknown issuer {str(name)[:100]!r}")
        return issuer


class _Keys:
    def __init__(self, jwt: Any, issuer: Issuer) -> None:
        data = issuer.key_file.read_bytes()
        self._by_id: dict[str | None, Any] = {}
        if issuer.jwks_file is not None:
            for key in jwt.PyJWKSet.from_json(data.decode()).keys:
                if key.public_key_use in {None, "sig"}:
                    _refuse_symmetric(key)
                    self._by_id[key.key_id] = key
            if not self._by_id:
                raise ValueError("no key for signatures")
        elif issuer.public_key_file is not None:
            for algorithm in issuer.algorithms:
                jwt.get_algorithm_by_name(algorithm).prepare_key(data)
            self._by_id[None] = data
        else:
            secret = data.strip()
            if len(secret) < 32:
                raise ValueError("a secret has at least 32 bytes")
            self._by_id[None] = secret
        # If an issuer has only one key, tokens need not name it.
        self._only = next(iter(self._by_id.values())) if len(self._by_id) == 1 else None
        self._named = issuer.jwks_file is not None

    def find_key(self, key_id: Any) -> Any:
        if not self._named or key_id is None:
            key = self._only
        else:
            key = self._by_id.get(key_id) if isinstance(key_id, str) else None
        if key is None:
            raise InvalidTokenError(INVALID_CREDENTIALS, f"unknown key id {str(key_id)[:100]!r}")
        return key


def _refuse_symmetric(key: Any) -> None:
    if key.key_type == "oct":
        raise ValueError("a JWKS file holds public keys; a secret belongs in secret_file")


def _subject(claims: dict[str, Any]) -> str:
    for name in _SUBJECT_CLAIMS:
        value = claims.get(name)
        if isinstance(value, str) and value:
            return value[:_MAX_SUBJECT]
    return ""


def _roles(claims: Any, path: str) -> frozenset[str]:
    """Return the roles in a claim: a list of texts, or one text with spaces like `scope`."""
    value = claims.get(path)
    if value is None:
        value = claims
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, str):
        return frozenset(value.split())
    if isinstance(value, list):
        return frozenset(role for role in value if isinstance(role, str))
    return frozenset()
