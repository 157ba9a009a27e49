"""Addresses as text."""

from __future__ import annotations

import pytest

from nereid.rpc.net.address import (
    authority_of,
    client_of,
    host_and_port,
    is_address,
    text_of,
    unix_path,
)


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
    assert authority_of("unix:/a") == "localhost"
    assert authority_of("a:1") == "a:1"


def test_what_can_be_dialled() -> None:
    assert all(map(is_address, ("h:1", "[::1]:65535", "unix:/a", "unix:b")))
    assert not any(map(is_address, ("", "h", ":1", "h:65536", "h:\N{SUPERSCRIPT TWO}", "unix:")))


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("10.1.2.3:40000", "10.1.2.3"),
        ("[::ffff:10.1.2.3]:40000", "10.1.2.3"),
        ("[2001:db8:1:2:3:4:5:6]:1", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:ffff::1]:1", "2001:db8:1:2::/64"),
        ("[::1]:1", "::1"),
        ("[fe80::1%eth0]:1", "fe80::1%eth0"),
        ("unix:/a", ""),
        ("local", ""),
    ],
)
def test_clients(peer: str, client: str) -> None:
    assert client_of(peer) == client
