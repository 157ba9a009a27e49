"""What an operation may still get of a store."""

from __future__ import annotations

import pytest

from nereid.object_store.bounds import Allowance, ExcessError


def test_pages_without_end() -> None:
    allowance = Allowance(1)
    for number in range(1000):
        allowance.on_success(f"http://store/?token={number}")
    with pytest.raises(ExcessError, match="the store's listing does not end: 1000 pages"):
        allowance.on_success("http://store/?token=1000")


def test_a_page_that_comes_again() -> None:
    allowance = Allowance(1)
    for _ in range(10):
        allowance.on_success("http://store/?token=a")
        allowance.on_success("http://store/?token=b")
    with pytest.raises(ExcessError, match="the store's listing does not end: it repeats a page"):
        allowance.on_success("http://store/?token=a")


def test_bytes_of_all_responses() -> None:
    allowance = Allowance(1 << 20)
    for _ in range(16):
        allowance.on_bytes(1 << 20)
    with pytest.raises(ExcessError, match="larger than any listing"):
        allowance.on_bytes(1)
