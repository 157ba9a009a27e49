"""The logging extension's settings: what the services log, and in which form.

Pure. The texts are Triton's. Knows no client and no logger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.observability.logging import LOG_FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.core.messages import LogRules

# Fields of LogRules by the settings' names, the kind a value must have, and what Triton calls that.
_SETTINGS: Final[dict[str, tuple[str, type, str]]] = {
    "log_info": ("info", bool, "boolean"),
    "log_warning": ("warning", bool, "boolean"),
    "log_error": ("error", bool, "boolean"),
    "log_verbose_level": ("verbose", int, "int32"),
    "log_format": ("format", str, "string"),
}
# The form for people goes by the name that Triton's clients know for the one nobody asked for.
_TOLD_FORMAT: Final = {"text": "default"}


def changed(rules: LogRules, changes: Mapping[str, Any]) -> LogRules:
    """The rules after a client's changes; what is not known is ignored, as on Triton.

    Raises:
        NereidError: a value is wrong.
    """
    if "log_file" in changes:
        raise Unimplemented("log file location can not be updated through network protocol")
    values: dict[str, Any] = {}
    for name, (field, kind, told) in _SETTINGS.items():
        if name in changes:
            value = changes[name]
            if type(value) is not kind:
                raise InvalidArgument(f"expect {told} for '{name}'")
            values[field] = value
    if values.get("format", rules.format) not in LOG_FORMATS:
        raise InvalidArgument(f"invalid argument for log_format, got: {values['format']}")
    return rules._replace(**values)


def shown(rules: LogRules, file: str) -> dict[str, bool | int | str]:
    """The settings by their names; file is where the log goes, empty for standard error."""
    return {
        "log_file": file,
        "log_info": rules.info,
        "log_warning": rules.warning,
        "log_error": rules.error,
        "log_verbose_level": rules.verbose,
        "log_format": _TOLD_FORMAT.get(rules.format, rules.format),
    }
