"""Detects requests that a browser sends for a page of another origin (CSRF).

Browsers name the origin in Sec-Fetch-Site, and older browsers in Origin. Pages cannot change either
header. Programs send neither header and are not refused.
"""

# layout: not compiled, off the hot path

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

# "none" is the user's own request, such as a typed address. A "same-site" page may be somebody
# else's.
_OWN_SITES: Final = frozenset({b"same-origin", b"none"})
_PORTS: Final = {"http": 80, "https": 443}
# These methods change nothing, and other origins cannot read the responses.
_READS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})

FORGED: Final = (
    "a page of another origin may not send this request (Sec-Fetch-Site, Origin); programs leave"
    " these headers out"
)


def is_forged(method: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a page of another origin sent this request, which may change something."""
    if method in _READS:
        return False
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in _OWN_SITES
    origin = headers.get(b"origin")
    return origin is not None and not _is_own(origin, headers.get(b"host", b""))


def _is_own(origin: bytes, host: bytes) -> bool:
    """Return whether an origin is this server's. Schemes may differ: a proxy may add TLS."""
    try:
        parts = urlsplit(origin.decode("ascii"))
        called = urlsplit("//" + host.decode("ascii"))
        default = _PORTS.get(parts.scheme)
        return (
            default is not None
            and parts.hostname is not None
            and parts.hostname == called.hostname
            and (parts.port or default) == (called.port or default)
        )
    except ValueError:
        return False
