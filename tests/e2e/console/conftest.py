"""One browser for all tests of a module: each has pages of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.console.browser import axe_source, launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser


# Playwright's event loop runs for as long: other modules' tests have loops of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="session")
def axe() -> str:
    return axe_source()
