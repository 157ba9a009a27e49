"""What tests of the HTTP server begin with: a server, and connections to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.gateway.http_site import LIMITS, HttpSite, http_site


@pytest.fixture
async def site(request: pytest.FixtureRequest) -> AsyncIterator[HttpSite]:
    """With the limits of the test's module, if it has some."""
    async with http_site(getattr(request.module, "LIMITS", LIMITS)) as made:
        yield made
