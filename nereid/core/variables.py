"""Environment variables in strings of a configuration whose first line asks for them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# First line of a file whose strings name variables.
MARK: Final = "# nereid: variables"
_VARIABLE: Final = re.compile(r"\$\$\{|\$\{(?P<body>[^{}]*)\}|\$\{")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_VALUE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Variables:
    """Variables that configurations may name. patterns: of their names, as in a shell."""

    patterns: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    def expand(self, text: str) -> str:
        """Replace `${NAME}`, `${NAME:-default}` and `$${`, which is `${`; may raise ValueError."""
        expanded = _VARIABLE.sub(self._value, text)
        if len(expanded) > MAX_VALUE:
            raise ValueError(f"a value with variables has more than {MAX_VALUE} characters")
        return expanded

    def _value(self, match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name, has_default, default = (match["body"] or "").partition(":-")
        if not _NAME.fullmatch(name):
            raise ValueError(f"expected ${{NAME}} or ${{NAME:-default}} but got '{match[0]}'")
        if not any(fnmatchcase(name, pattern) for pattern in self.patterns):
            raise ValueError(f"--model-config-env does not allow the variable '{name}'")
        if name in self.values:
            return self.values[name]
        if not has_default:
            raise ValueError(f"the variable '{name}' is not set")
        return default


def names_variable(text: str) -> bool:
    """Return whether a text would have a variable if the file asked for them."""
    bodies = [match["body"] or "" for match in _VARIABLE.finditer(text)]
    return any(_NAME.fullmatch(body.partition(":-")[0]) for body in bodies)


def wants_variables(text: str) -> bool:
    """Return whether the first line asks for variables."""
    return text.partition("\n")[0].strip() == MARK
