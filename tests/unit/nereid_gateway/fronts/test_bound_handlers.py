"""Handlers by the names that tables have for them."""

from __future__ import annotations

import pytest

from nereid_gateway.fronts.bound_handlers import bind_handlers


class Doors:
    def __init__(self, sound: str) -> None:
        self._sound = sound

    def knock(self) -> str:
        return self._sound


def test_a_name_is_a_method_of_the_object_of_its_class() -> None:
    bound = bind_handlers(["Doors.knock"], [Doors("tock")])
    assert bound["Doors.knock"]() == "tock"


def test_a_class_without_an_object_is_left_out() -> None:
    assert bind_handlers(["Doors.knock", "Windows.open", ""], [Doors("")]).keys() == {"Doors.knock"}


def test_a_method_that_a_class_lacks_is_an_error() -> None:
    with pytest.raises(AttributeError):
        bind_handlers(["Doors.ring"], [Doors("")])
