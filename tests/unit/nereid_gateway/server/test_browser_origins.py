"""Requests that a browser sends for another origin's page."""

from __future__ import annotations

import pytest

from nereid_gateway.server.browser_origins import is_forged

_HOST = (b"host", b"mesh:8000")


@pytest.mark.parametrize(
    "headers",
    [
        # Programs.
        [],
        [_HOST],
        [_HOST, (b"sec-fetch-site", b"same-origin")],
        [_HOST, (b"sec-fetch-site", b"none")],
        [_HOST, (b"origin", b"http://mesh:8000")],
        [(b"host", b"MESH"), (b"origin", b"https://mesh")],
        [(b"host", b"mesh:443"), (b"origin", b"https://mesh")],
        [(b"host", b"[::1]:8000"), (b"origin", b"http://[::1]:8000")],
    ],
)
def test_own(headers: list[tuple[bytes, bytes]]) -> None:
    assert not is_forged(b"POST", dict(headers))


@pytest.mark.parametrize(
    "headers",
    [
        [_HOST, (b"sec-fetch-site", b"cross-site")],
        [_HOST, (b"sec-fetch-site", b"same-site")],
        [_HOST, (b"sec-fetch-site", b"cross-site"), (b"origin", b"http://mesh:8000")],
        [_HOST, (b"origin", b"http://evil.example")],
        [_HOST, (b"origin", b"http://mesh:8001")],
        [_HOST, (b"origin", b"http://mesh.evil.example:8000")],
        [_HOST, (b"origin", b"null")],
        [_HOST, (b"origin", b"")],
        [_HOST, (b"origin", b"http://mesh:99999")],
        [_HOST, (b"origin", b"file://mesh:8000")],
        [_HOST, (b"origin", b"http://\xff")],
        [(b"origin", b"http://mesh")],
    ],
)
def test_forged(headers: list[tuple[bytes, bytes]]) -> None:
    assert is_forged(b"POST", dict(headers))
    assert not is_forged(b"GET", dict(headers))
