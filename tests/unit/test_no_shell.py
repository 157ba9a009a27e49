"""The product starts no shell, so that no client's text can become a command."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SHELLS = {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell",
}
_PROGRAMS = {"sh", "bash", "dash", "/bin/sh", "/bin/bash"}


def _shells(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of calls that start a shell."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if ast.unparse(node.func) in _SHELLS:
            yield node.lineno
        if any(
            word.arg == "shell"
            and not (isinstance(word.value, ast.Constant) and not word.value.value)
            for word in node.keywords
        ):
            yield node.lineno
        first = getattr(node.args[0], "elts", [])[:1] if node.args else []
        if first and isinstance(first[0], ast.Constant) and first[0].value in _PROGRAMS:
            yield node.lineno


def test_no_shell() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("nereid", "services", "plugins", "tools")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in _shells(ast.parse(path.read_text()))
    ]
    assert found == []


def test_what_is_found() -> None:
    text = "os.system(x)\nrun(y, shell=True)\nrun(['sh', '-c', z])\nrun(y, shell=False)\nrun(['a'])"
    assert list(_shells(ast.parse(text))) == [1, 2, 3]
