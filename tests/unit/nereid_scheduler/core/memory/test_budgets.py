"""Budgets of memory, as they are written."""

from collections.abc import Iterable

import pytest

from nereid_scheduler.core.memory.budgets import Budget, budgets_of, parse_size

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("10B", 10),
        ("1.5KiB", 1536),
        ("2KB", 2000),
        ("3 MiB", 3 * MIB),
        ("4G", 4 * 10**9),
        ("4GiB", 4 << 30),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_with_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "4XiB", "1e9", "four"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "device", "written"),
    [
        ("1KiB", "", "1024"),
        ("cpu=1KiB", "cpu", "cpu=1024"),
        ("gpu=1024", "gpu", "gpu=1024"),
        ("gpu:1=1KiB", "gpu 1", "gpu:1=1024"),
    ],
)
def test_budgets(text: str, device: str, written: str) -> None:
    budget = Budget.parse(text)
    assert budget == Budget(device, 1024)
    assert str(budget) == written
    assert Budget.parse(written) == budget


@pytest.mark.parametrize("text", ["disk=1GiB", "cpu:0=1GiB", "gpu:x=1GiB", "cpu="])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Budget.parse(text)


@pytest.mark.parametrize(
    ("given", "budgets"),
    [
        ([], {}),
        (["5"], {"cpu": 5, "gpu": 5}),
        (["5", "cpu=7", "gpu:0=9"], {"cpu": 7, "gpu": 5, "gpu 0": 9}),
        (["gpu=5", "gpu=6"], {"gpu": 6}),
    ],
)
def test_budgets_by_device(given: Iterable[str], budgets: dict[str, int]) -> None:
    assert budgets_of(map(Budget.parse, given)) == budgets
