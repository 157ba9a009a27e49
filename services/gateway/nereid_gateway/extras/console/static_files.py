"""Files of the console's page, which are read from the package once."""

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
# The page may load nothing from other origins or inline, connect to no other origin, and be in no
# frame.
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    b" connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none';"
    b" form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
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
    """File that the page consists of."""

    content_type: bytes
    body: bytes
    etag: bytes
    # Header lines of the response that has this file.
    lines: bytes


def package_files() -> Traversable:
    """Return the directory in the package that has the files of the page."""
    return files(__package__) / "static"


def read_files(directory: Traversable) -> dict[str, StaticFile]:
    """Return the files of a directory by name, without those of unknown types."""
    if not directory.is_dir():
        return {}
    static_files = {}
    for file in directory.iterdir():
        content_type = _TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None and file.is_file():
            body = file.read_bytes()
            etag = b'"%b"' % sha256(body).hexdigest()[:32].encode()
            # Browsers ask at each use whether the file is current, so a page never runs with
            # scripts of another release.
            lines = _PAGE_HEADERS + b"Cache-Control: no-cache\r\nETag: %b\r\n" % etag
            static_files[file.name] = StaticFile(content_type, body, etag, lines)
    return static_files
