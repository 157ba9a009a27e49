"""The logging extension's settings, as Triton's clients know them."""

from typing import Any

import pytest

from nereid.core.errors import InvalidArgument, NereidError, Unimplemented
from nereid.observability.logging import LogSettings, initial_log_rules
from nereid_scheduler.pages.log_settings import (
    apply_changes,
    saved_settings,
    shown_settings,
)

START = initial_log_rules(LogSettings())


def test_initial_settings_are_as_on_triton() -> None:
    assert shown_settings(START, "/var/log/nereid") == {
        "log_file": "/var/log/nereid",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }


def test_changes_are_applied_and_unknown_settings_are_ignored() -> None:
    changes = {"log_info": False, "log_verbose_level": 2, "log_format": "ISO8601", "nope": None}
    shown = shown_settings(apply_changes(START, changes), "")
    assert (shown["log_info"], shown["log_warning"]) == (False, True)
    assert (shown["log_verbose_level"], shown["log_format"]) == (2, "ISO8601")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"log_info": "x"}, InvalidArgument),
        ({"log_warning": 1}, InvalidArgument),
        ({"log_error": None}, InvalidArgument),
        ({"log_verbose_level": True}, InvalidArgument),
        ({"log_format": True}, InvalidArgument),
        ({"log_format": "x"}, InvalidArgument),
        ({"log_file": "f"}, Unimplemented),
    ],
)
def test_invalid_values_are_refused(changes: dict[str, Any], error: type[NereidError]) -> None:
    with pytest.raises(error):
        apply_changes(START, changes)


def test_saved_settings_are_changes_to_any_others() -> None:
    changes = {"log_error": False, "log_verbose_level": 2, "log_format": "ISO8601"}
    rules = apply_changes(START, changes)
    assert apply_changes(START, saved_settings(rules)) == rules
    assert apply_changes(rules, saved_settings(START)) == START
