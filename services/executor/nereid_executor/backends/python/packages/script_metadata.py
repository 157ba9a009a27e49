"""Reads PEP 723 metadata: the comment block of a model.py that names its packages and Python."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final, NamedTuple

_BEGIN: Final = "# /// script"
_END: Final = "# ///"
_CLAUSE: Final = re.compile(r"(~=|==|!=|<=|>=|<|>)\s*(\d+(?:\.\d+)*)(\.\*)?")


class ScriptMetadata(NamedTuple):
    """Packages and versions of Python that a script needs."""

    dependencies: tuple[str, ...]
    requires_python: str


def read_script_metadata(source: str) -> ScriptMetadata | None:
    """Return the metadata of a script's source; `None` if it has none.

    Raises ValueError for a malformed block.
    """
    lines = iter(source.splitlines())
    if not any(line.rstrip() == _BEGIN for line in lines):
        return None
    block: list[str] = []
    # A block may contain "# ///": the last one of the comment lines ends it.
    end = -1
    for line in lines:
        if line != "#" and not line.startswith("# "):
            break
        if line.rstrip() == _END:
            end = len(block)
        block.append(line[2:])
    if end < 0:
        raise ValueError(f"its block '{_BEGIN}' does not end with '{_END}'")
    try:
        values = tomllib.loads("\n".join(block[:end]))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"its block '{_BEGIN}' is no TOML: {error}") from error
    return ScriptMetadata(_dependencies(values), _requires_python(values))


def _dependencies(values: dict[str, Any]) -> tuple[str, ...]:
    given = values.get("dependencies", [])
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise ValueError("its 'dependencies' are no list of strings")
    return tuple(given)


def _requires_python(values: dict[str, Any]) -> str:
    given = values.get("requires-python", "")
    if not isinstance(given, str):
        raise ValueError("its 'requires-python' is no string")  # noqa: TRY004 - of a file
    allows_python(given, (0, 0, 0))
    return given.strip()


def allows_python(specifier: str, version: tuple[int, int, int]) -> bool:
    """Return whether 'requires-python' allows a version; raise ValueError for a malformed one."""
    # All clauses are read, so that a malformed one is found whatever the version.
    allowed = [
        _allows(clause, version) for part in specifier.split(",") if (clause := part.strip())
    ]
    return all(allowed)


def _allows(clause: str, version: tuple[int, int, int]) -> bool:
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        raise ValueError(f"its 'requires-python' has the clause '{clause}'")
    operator, digits, has_star = match.groups()
    given = tuple(map(int, digits.split(".")))
    padded = (*given, 0, 0)[:3]
    prefix = version[: len(given)] == given
    match operator:
        case "==":
            return prefix if has_star else version == padded
        case "!=":
            return not prefix if has_star else version != padded
        case ">=":
            return version >= padded
        case "<=":
            return version <= padded
        case ">":
            return version > padded
        case "<":
            return version < padded
    return version >= padded and version[: len(given) - 1] == given[:-1]
