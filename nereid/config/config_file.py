"""Configuration file: TOML whose keys are the names of flags, without the leading dashes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.config.flags import flags_by_topic, similar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nereid.config.flags import DeclaredFlag

# Fields of flags that a file cannot have: they name the file, or print it.
FILE: Final = "config"
PRINT: Final = "print_config"
_HEADER: Final = """\
# Configuration of nereid serve: nereid serve --config FILE
# Lines with one # are defaults. The command line and the environment come before this file.
"""


class ConfigFile(NamedTuple):
    """Path of a file, and its texts by the names of fields."""

    path: str
    texts: Mapping[str, list[str]]


NO_FILE: Final = ConfigFile("", {})


def load(path: str) -> dict[str, Any]:
    """Return the file's table; raise ValueError if it cannot be read or is no TOML."""
    import tomllib  # noqa: PLC0415 - takes 5 ms, and few command lines name a file

    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib takes 4 ms
            return tomllib.load(file)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None


def texts(value: Any) -> list[str]:
    """Return the texts of a key's value; raise ValueError if it has no text."""
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, str | int | float):
        return [str(value)]
    if isinstance(value, list) and not any(isinstance(each, list) for each in value):
        return [text for each in value for text in texts(each)]
    raise ValueError("expected a string, a number, true, false or a list of these")


def read(path: str, flags: Sequence[DeclaredFlag], errors: list[str]) -> ConfigFile:
    """Return the texts that the file gives these flags; append the file's errors to `errors`."""
    try:
        table = load(path)
    except ValueError as error:
        errors.append(f"{path}: {error}")
        return NO_FILE
    by_key = {
        name.lstrip("-"): flag
        for flag in flags
        if flag.field.name not in (FILE, PRINT)
        for name in (flag.name, *flag.option.aliases)
    }
    found: dict[str, list[str]] = {}
    for key, value in table.items():
        flag = by_key.get(key)
        if flag is None:
            errors.append(f"{path}: unknown key '{key}'{similar(key, by_key)}")
        elif flag.field.name in found:
            errors.append(f"{path}: '{key}' and another key are one flag, {flag.name}")
        elif isinstance(value, list) and not flag.option.repeated:
            errors.append(f"{path}: {key}: takes one value, not a list")
        else:
            try:
                found[flag.field.name] = texts(value)
            except ValueError as error:
                errors.append(f"{path}: {key}: {error}")
    return ConfigFile(path, found)


def file_text(flags: Iterable[DeclaredFlag], values: Mapping[str, Any]) -> str:
    """Return the file that gives these values, with the other flags' defaults as comments."""
    lines = [_HEADER]
    for topic, members in flags_by_topic(flags):
        entries = [line for flag in members if (line := _entry(flag, values))]
        if entries:
            lines += [f"## {topic.value if topic else 'Other'}", *entries, ""]
    return "\n".join(lines)


def _entry(flag: DeclaredFlag, values: Mapping[str, Any]) -> str:
    name = flag.field.name
    if name in (FILE, PRINT) or (name not in values and not flag.default_text):
        return ""
    key = flag.name.removeprefix("--")
    if name not in values:
        return f"# {key} = {_toml(flag.field.default)}"
    if flag.option.secret:
        return f"## {key} is set, and may hold a password"
    return f"{key} = {_toml(values[name])}"


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    # A string of JSON is one of TOML, but for this character.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
