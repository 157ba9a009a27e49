"""The logging extension's settings, as Triton's clients know them."""

from typing import Any

import pytest

from nereid.core.errors import InvalidArgument, NereidError, Unimplemented
from nereid.observability.logging import LogSettings, rules_of
from nereid.services.scheduler.observability.log_settings import changed, shown

START = rules_of(LogSettings())


def test_what_is_shown_at_first_is_what_triton_shows() -> None:
    assert shown(START, "/var/log/nereid") == {
        "log_file": "/var/log/nereid",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }


def test_changes_are_taken_over_and_what_is_not_known_is_ignored() -> None:
    changes = {"log_info": False, "log_verbose_level": 2, "log_format": "ISO8601", "nope": None}
    told = shown(changed(START, changes), "")
    assert (told["log_info"], told["log_warning"]) == (False, True)
    assert (told["log_verbose_level"], told["log_format"]) == (2, "ISO8601")


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"log_info": "x"}, InvalidArgument, "expect boolean for 'log_info'"),
        ({"log_warning": 1}, InvalidArgument, "expect boolean for 'log_warning'"),
        ({"log_error": None}, InvalidArgument, "expect boolean for 'log_error'"),
        ({"log_verbose_level": True}, InvalidArgument, "expect int32 for 'log_verbose_level'"),
        ({"log_format": True}, InvalidArgument, "expect string for 'log_format'"),
        ({"log_format": "x"}, InvalidArgument, "invalid argument for log_format, got: x"),
        ({"log_file": "f"}, Unimplemented, "log file location can not be updated"),
    ],
)
def test_what_is_wrong_is_told(
    changes: dict[str, Any], error: type[NereidError], text: str
) -> None:
    with pytest.raises(error) as told:
        changed(START, changes)
    assert text in told.value.message
