"""Shared code of the scripts that generate reference pages: write or check a page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
_PAGES = ROOT / "docs" / "reference"


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in lines)


def _escaped(cell: str) -> str:
    for mark in "|*<":
        cell = cell.replace(mark, f"\\{mark}")
    return cell


def write_or_check(name: str, text: str, description: str, folder: Path = _PAGES) -> int:
    """Write the page, or with --check compare it with the existing page.

    folder: folder of the page, by default docs/reference. Returns the exit code.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if the page is not current"
    )
    path = folder / name
    if not parser.parse_args().check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return 0
    if path.exists() and path.read_text() == text:
        return 0
    print(f"{path.relative_to(ROOT)} is not current: run {sys.argv[0]}", file=sys.stderr)
    return 1
