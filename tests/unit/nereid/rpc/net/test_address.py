"""Addresses as text."""

from __future__ import annotations

import pytest

from nereid.rpc.net.address import host_and_port, text_of, unix_path


def test_addresses() -> None:
    assert unix_path("unix:/a/b") == "/a/b"
    assert unix_path("unix:///a/b") == "/a/b"
    assert unix_path("unix:b") == "b"
    assert unix_path("a:1") is None
    assert host_and_port("[::1]:80") == ("::1", 80)
    assert host_and_port("h:0") == ("h", 0)
    for bad in ("h", "h:", "h:x", "80"):
        with pytest.raises(ValueError, match="not host:port"):
            host_and_port(bad)
    assert text_of(("::1", 80, 0, 0)) == "[::1]:80"
    assert text_of(("h", 80)) == "h:80"
    assert text_of("") == "unix:"
    assert text_of(b"/a") == "unix:/a"
