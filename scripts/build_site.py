"""Build the documentation's website in build/site.

The script fails if a link or anchor is dead, if the navigation lacks a page, or if a page would
fetch anything from another host.

usage: build_site.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
# Parts of the site, at their paths in the repository: pages, and the files that they link to.
SOURCES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "SECURITY.md",
    "benchmarks/README.md",
    "deploy/argocd/application.yaml",
    "deploy/helm/nereid/README.md",
    "deploy/kserve/README.md",
    ".github/workflows/release.yml",
    "deploy/prometheus/rules/alerts.yml",
    "deploy/prometheus/rules/slo.yml",
    "deploy/systemd/nereid.service",
    "docs",
    "tests/README.md",
    "tests/support/README.md",
)
# The attribute, by tag, that makes a browser fetch something.
FETCHING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class _Fetched(HTMLParser):
    """Parser that collects what a page fetches from other hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the URL of a tag that fetches from another host."""
        address = dict(attrs).get(FETCHING.get(tag, "")) or ""
        if address.startswith(("http:", "https:", "//")):
            self.addresses.append(address)


def link_pages() -> None:
    """Link the sources into the site's folder."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for source in SOURCES:
        target = PAGES / source
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(ROOT / source)


def fetched_elsewhere(site: Path) -> list[str]:
    """Return a line for each page and address that browsers would fetch from another host."""
    found = []
    for page in sorted(site.rglob("*.html")):
        parser = _Fetched()
        parser.feed(page.read_text())
        found += [f"{page.relative_to(site)}: {address}" for address in parser.addresses]
    return found


def main() -> int:
    """Build the site, check it, and return the exit code."""
    link_pages()
    # The output must not be --quiet: strict mode counts the warnings that are shown.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )
    if built.returncode:
        print(built.stderr)
        return 1
    found = fetched_elsewhere(SITE)
    for finding in found:
        print(f"fetched from another host: {finding}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
