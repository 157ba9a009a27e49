"""Hook of the site's build: pages for contributors come last in its search."""

from __future__ import annotations

from typing import Any, Final

# Pages that explain Nereid's own code use all words of its operators.
_CONTRIBUTORS: Final = (
    "docs/decisions/",
    "tests/",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/backend-authors.md",
    "docs/protocols.md",
    "docs/simulation.md",
    "docs/track-record.md",
)
_BOOST: Final = 0.1


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Rank a page for contributors below all others."""
    if page.file.src_uri.startswith(_CONTRIBUTORS):
        page.meta["search"] = {"boost": _BOOST}
    return markdown
