"""Marks of folders (setup.py): known, opted out of with a reason, and true of what they mark."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from setup import MARKS, OPTED_OUT, marked_modules, source_directories

ROOT = Path(__file__).parents[2]
KNOWN = {"compiled", "covered", "pure"}
PURE = marked_modules("pure", ROOT)
# A pure module gets times and events as arguments, and leaves acting to its caller.
IMPURE = {"asyncio", "socket", "threading", "time"}
SOURCES = [
    path
    for directory in source_directories(ROOT)
    for package in (ROOT / directory).glob("nereid*")
    for path in package.rglob("*.py")
]


def marks_of(folder: Path) -> set[str]:
    found = MARKS.search((folder / "__init__.py").read_text())
    return set(found[1].split(", ")) if found else set()


def test_marks_are_known() -> None:
    folders = [path.parent for path in SOURCES if path.name == "__init__.py"]
    marks = {folder: marks_of(folder) for folder in folders}
    assert {mark for each in marks.values() for mark in each} == KNOWN


def test_modules_opt_out_with_a_reason_and_carry_marks_that_their_folder_has_not() -> None:
    for path in SOURCES:
        if path.name != "__init__.py" and "# layout:" in (text := path.read_text()):
            opted_out = OPTED_OUT.findall(text)
            carried = {mark for mark in KNOWN if f"\n# layout: {mark}\n" in text}
            assert len(opted_out) + len(carried) == text.count("# layout:"), path
            assert not carried & marks_of(path.parent), path
            for mark, reason in opted_out:
                assert mark in marks_of(path.parent), path
                assert len(reason) > 5, path


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_holds_no_clock_socket_or_event_loop(name: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse((ROOT / PURE[name]).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.partition(".")[0])
    assert not imported & IMPURE
