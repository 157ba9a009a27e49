"""Lists of schedulers' addresses, and the names in them that DNS resolves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from nereid.rpc.net.scheduler_addresses import (
    AddressSpec,
    address_list,
    only_address,
    parse_addresses,
    watch_addresses,
)

if TYPE_CHECKING:
    from nereid.rpc.net.scheduler_addresses import Lookup


def test_lists() -> None:
    assert parse_addresses("a:1, unix:/b ,dns:c:2,a:1,[::1]:3") == [
        AddressSpec("a:1"),
        AddressSpec("unix:/b"),
        AddressSpec("c:2", is_dns=True),
        AddressSpec("[::1]:3"),
    ]
    assert address_list("a:1,b:2") == "a:1,b:2"
    assert only_address("a:1") == only_address("a:1,a:1") == "a:1"
    assert only_address("unix:/a") == "unix:/a"
    assert only_address("a:1,b:1") is only_address("dns:a:1") is None


@pytest.mark.parametrize("text", ["", "a:1,", "a:x", "a:1,unix:", "dns:a", "dns:unix:/b"])
def test_what_cannot_be_dialled_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        parse_addresses(text)


async def test_without_dns_the_addresses_are_yielded_once() -> None:
    found = [each async for each in watch_addresses(parse_addresses("b:1,a:1,b:1"))]
    assert found == [["b:1", "a:1"]]


def _scripted(*results: list[str] | Exception) -> Lookup:
    script = iter(results)

    async def lookup(host: str, port: int) -> list[str]:
        assert (host, port) == ("name", 2)
        result = next(script)
        if isinstance(result, Exception):
            raise result
        return result

    return lookup


async def test_changes_of_a_name_are_yielded_and_failures_keep_what_was_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failure = OSError("no such name")
    lookup = _scripted(
        failure, UnicodeError(), ["1:2", "0:2"], ["0:2", "1:2"], failure, ["1:2"], failure, ["9:2"]
    )
    watched = watch_addresses(
        parse_addresses("a:1,dns:name:2"), interval_s=0, first_interval_s=0, lookup=lookup
    )
    with caplog.at_level(logging.WARNING):
        expected = [["a:1"], ["a:1", "0:2", "1:2"], ["a:1", "1:2"], ["a:1", "9:2"]]
        assert [await anext(watched) for _ in expected] == expected
    assert len(caplog.records) == 3


async def test_the_resolver_is_asked_for_names() -> None:
    watched = watch_addresses(parse_addresses("dns:localhost:2"))
    (address,) = await anext(watched)
    assert address in ("127.0.0.1:2", "[::1]:2")
