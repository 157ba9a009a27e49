"""Blocks of code in the documentation's pages, for tests that run what pages show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

RECIPES: Final = Path(__file__).parents[2] / "docs" / "recipes"
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE: Final = re.compile(r"# ([\w./-]+\.\w+)\n")


def blocks(recipe: str) -> list[tuple[str, str]]:
    """Return the language and the text of each block of a recipe, in order."""
    return _BLOCK.findall((RECIPES / f"{recipe}.md").read_text())


def file_name(text: str) -> str | None:
    """Return the path of the file that a block is, by the comment in its first line."""
    found = _FILE.match(text)
    return found[1] if found else None
