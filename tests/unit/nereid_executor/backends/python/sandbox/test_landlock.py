"""The rights that each version of Landlock can refuse."""

from __future__ import annotations

from nereid_executor.backends.python.sandbox import landlock


def test_rights_grow_with_the_version() -> None:
    assert landlock.handled_rights(1) == (0x1FFF, 0, 0)
    assert landlock.handled_rights(2) == (0x3FFF, 0, 0)
    assert landlock.handled_rights(3) == (0x7FFF, 0, 0)
    assert landlock.handled_rights(4) == (0x7FFF, 3, 0)
    assert landlock.handled_rights(5) == (0xFFFF, 3, 0)
    assert landlock.handled_rights(6) == (0xFFFF, 3, 3)
    assert landlock.handled_rights(9) == (0xFFFF, 3, 3)


def test_no_rule_allows_to_make_devices() -> None:
    make_devices = 1 << 6 | 1 << 11
    for rights in (landlock.READ, landlock.WRITE, landlock.DEVICE, landlock.SHARED):
        assert not rights & make_devices


def test_names_of_shared_objects_cannot_be_listed() -> None:
    assert not landlock.SHARED & 8
