"""The logging extension's settings: which levels the services log, and in which format.

Pure. The texts are Triton's. Knows no client and no logger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.observability.logging import LOG_FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.core.wire.messages import LogRules

# By the settings' names: the field of LogRules, the type of its values, and Triton's name for it.
_SETTINGS: Final[dict[str, tuple[str, type, str]]] = {
    "log_info": ("info", bool, "boolean"),
    "log_warning": ("warning", bool, "boolean"),
    "log_error": ("error", bool, "boolean"),
    "log_verbose_level": ("verbose", int, "int32"),
    "log_format": ("format", str, "string"),
}
# Our formats by other names in Triton.
_TRITON_FORMAT: Final = {"text": "default"}


def apply_changes(rules: LogRules, changes: Mapping[str, object]) -> LogRules:
    """The rules after a client's changes; unknown settings are ignored, as on Triton.

    Raises:
        NereidError: a value is invalid.
    """
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
    """All of them, for apply_changes()."""
    return {name: getattr(rules, field) for name, (field, _, _) in _SETTINGS.items()}


def shown_settings(rules: LogRules, file: str) -> dict[str, bool | int | str]:
    """The settings by their names. file: where the log is written; empty: standard error."""
    return {
        "log_file": file,
        "log_info": rules.info,
        "log_warning": rules.warning,
        "log_error": rules.error,
        "log_verbose_level": rules.verbose,
        "log_format": _TRITON_FORMAT.get(rules.format, rules.format),
    }
