"""The files of the console's page, as the package has them; read once."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

INDEX: Final = "index.html"
_TYPES: Final = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "json": b"application/json",
    "png": b"image/png",
    "svg": b"image/svg+xml",
    "txt": b"text/plain; charset=utf-8",
    "woff2": b"font/woff2",
}
# Nothing from elsewhere, nothing inline, in no frame; it talks to its own origin alone.
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    b" connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none';"
    b" form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
# Of all that the console responds with.
SAFE_HEADERS: Final = (
    b"X-Content-Type-Options: nosniff\r\n"
    b"Referrer-Policy: no-referrer\r\n"
    b"Cross-Origin-Resource-Policy: same-origin\r\n"
)
_PAGE_HEADERS: Final = (
    SAFE_HEADERS
    + b"Content-Security-Policy: "
    + _POLICY
    + b"\r\nX-Frame-Options: DENY\r\nCross-Origin-Opener-Policy: same-origin\r\n"
    b"Permissions-Policy: camera=(), geolocation=(), microphone=()\r\n"
)


class StaticFile(NamedTuple):
    """One file. lines: the header lines of its response."""

    content_type: bytes
    body: bytes
    etag: bytes
    lines: bytes


def package_files() -> Traversable:
    """Where they are."""
    return files(__package__) / "static"


def read_files(directory: Traversable) -> dict[str, StaticFile]:
    """All of a directory, by name; others than these kinds are not served."""
    if not directory.is_dir():
        return {}
    found = {}
    for each in directory.iterdir():
        content_type = _TYPES.get(each.name.rpartition(".")[2])
        if content_type is not None and each.is_file():
            body = each.read_bytes()
            etag = b'"%b"' % sha256(body).hexdigest()[:32].encode()
            # A page never runs with scripts of another release: each use asks whether it is new.
            lines = _PAGE_HEADERS + b"Cache-Control: no-cache\r\nETag: %b\r\n" % etag
            found[each.name] = StaticFile(content_type, body, etag, lines)
    return found
