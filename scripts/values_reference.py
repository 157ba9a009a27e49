"""Write the table of values in deploy/helm/nereid/README.md from values.yaml.

With --check: exit with 1 if it differs.

usage: values_reference.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.reference_page import ROOT, table, write_or_check

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHART = ROOT / "deploy" / "helm" / "nereid"
_MARK = "<!-- What follows is written by scripts/values_reference.py from values.yaml. -->\n"
_HEADER = ("Value", "Default", "Meaning")
# Values that components have alike are explained once, with the first of them.
_FIRST = "gateway."
_OTHERS = ("scheduler.", "executor.defaults.", "cache.", "redis.")


def rows(text: str) -> list[tuple[str, ...]]:
    """Return path, default and comment of each value.

    A mapping in flow style ({...}) is one value. Any other mapping has a row of its own only if it
    has a comment.
    """
    found = list(_values(yaml.compose(text, Loader=yaml.SafeLoader), text, ""))
    meanings = {path: meaning for path, _, meaning in found}
    return [
        (f"`{path}`", f"`{default}`" if default else "", meaning or _shared(path, meanings))
        for path, default, meaning in found
    ]


def _shared(path: str, meanings: dict[str, str]) -> str:
    for prefix in _OTHERS:
        if path.startswith(prefix):
            return meanings.get(_FIRST + path.removeprefix(prefix), "")
    return ""


def _values(node: yaml.MappingNode, text: str, prefix: str) -> Iterator[tuple[str, str, str]]:
    for key, value in node.value:
        path, meaning = prefix + key.value, _comment(text.splitlines(), key.start_mark)
        if not isinstance(value, yaml.MappingNode) or value.flow_style:
            default = text[value.start_mark.index : value.end_mark.index]
            yield path, " ".join(default.split()), meaning
            continue
        if meaning:
            yield path, "", meaning
        yield from _values(value, text, f"{path}.")


def _comment(lines: list[str], mark: yaml.Mark) -> str:
    """Return the comment above a key, with its indentation."""
    begin = f"{' ' * mark.column}# "
    first = mark.line
    while first > 0 and lines[first - 1].startswith(begin):
        first -= 1
    return " ".join(line.removeprefix(begin) for line in lines[first : mark.line])


def page() -> str:
    """Return the page."""
    head, mark, _ = (_CHART / "README.md").read_text().partition(_MARK)
    if not mark:
        raise SystemExit(f"deploy/helm/nereid/README.md lacks the line {_MARK.strip()}")
    values = rows((_CHART / "values.yaml").read_text())
    return f"{head}{mark}\n{table(_HEADER, values)}"


if __name__ == "__main__":
    description = "The table of the chart's values"
    sys.exit(write_or_check("README.md", page(), description, _CHART))
