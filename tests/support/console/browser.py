"""Debian's Chromium, driven by Playwright: pages that note what a page must not do, and axe-core.

Skips where one of them is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[3]
_NPM_FOLDER = ROOT / "build" / "npm-axe"
# WCAG 2.2's levels A and AA, and what axe-core itself advises.
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """A browser without a window."""
    names = ("chromium", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("needs chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    # Root, as in containers, has no sandbox.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page, and what it did that it must not do."""

    def __init__(self, page: Page) -> None:
        self.page = page
        # Errors of scripts, and what the content security policy refused.
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        self.urls: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._on_message)
        page.on("dialog", self._on_dialog)
        page.on("request", lambda request: self.urls.append(request.url))

    def _on_message(self, message: Any) -> None:
        # Chromium logs by itself that a response was an error.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def _on_dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def check(self, origin: str) -> None:
        """Check that the page did nothing of that."""
        assert self.errors == []
        assert self.dialogs == []
        foreign = [url for url in self.urls if not url.startswith((f"{origin}/", "data:"))]
        assert foreign == []


@contextlib.contextmanager
def opened(browser: Browser, origin: str, **context: Any) -> Iterator[Watched]:
    """A page of its own, checked at the end. context: Playwright's options of a context."""
    own = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **context)
    try:
        watched = Watched(own.new_page())
        watched.page.set_default_timeout(20_000)
        yield watched
        watched.check(origin)
    finally:
        own.close()


def axe_source() -> str:
    """The script of npm's axe-core, which is installed where it is missing."""
    script = _NPM_FOLDER / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("needs npm")
        _NPM_FOLDER.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        installed = subprocess.run(
            [*command, "--prefix", str(_NPM_FOLDER), "axe-core@4"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if installed.returncode != 0:
            pytest.skip(f"npm cannot install axe-core: {installed.stderr[-300:]}")
    return script.read_text()


def violations(page: Page, source: str) -> list[str]:
    """Return what axe-core finds on the page as it is: the rule and the elements."""
    page.evaluate(source)
    options = json.dumps({"runOnly": _RULES, "resultTypes": ["violations"]})
    results: Mapping[str, Any] = page.evaluate(f"axe.run(document, {options})")
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary']}"
        for each in results["violations"]
        for node in each["nodes"]
    ]
