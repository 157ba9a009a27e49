"""Settings of the logging extension: the levels that services log, and the format.

Error texts are Triton's. As in Triton, unknown settings are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.observability.logging import LOG_FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.core.wire.messages import LogRules

# Maps a setting's name to its field of LogRules, its type, and Triton's name of the type.
_SETTINGS: Final[dict[str, tuple[str, type, str]]] = {
    "log_info": ("info", bool, "boolean"),
    "log_warning": ("warning", bool, "boolean"),
    "log_error": ("error", bool, "boolean"),
    "log_verbose_level": ("verbose", int, "int32"),
    "log_format": ("format", str, "string"),
}
_TRITON_FORMAT: Final = {"text": "default"}


def apply_changes(rules: LogRules, changes: Mapping[str, object]) -> LogRules:
    """Return the rules after a client's changes; raise NereidError if a value is invalid."""
    if "log_file" in changes:
        raise Unimplemented("log file location can not be updated through network protocol")
    values: dict[str, Any] = {}
    for name, (field, kind, type_name) in _SETTINGS.items():
        if name in changes:
            value = changes[name]
            if type(value) is not kind:
                raise InvalidArgument(f"expect {type_name} for '{name}'")
            values[field] = value
    if values.get("format", rules.format) not in LOG_FORMATS:
        raise InvalidArgument(f"invalid argument for log_format, got: {values['format']}")
    return rules._replace(**values)


def saved_settings(rules: LogRules) -> dict[str, bool | int | str]:
    """Return all settings in the form that `apply_changes` accepts."""
    return {name: getattr(rules, field) for name, (field, _, _) in _SETTINGS.items()}


def shown_settings(rules: LogRules, file: str) -> dict[str, bool | int | str]:
    """Return the settings by name. `file` is the path of the log; empty means standard error."""
    return {
        "log_file": file,
        "log_info": rules.info,
        "log_warning": rules.warning,
        "log_error": rules.error,
        "log_verbose_level": rules.verbose,
        "log_format": _TRITON_FORMAT.get(rules.format, rules.format),
    }
