"""What all protocols' worlds need."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def no_garbage_of_others() -> None:
    """Finalizers of what other tests left would take a virtual loop for one of asyncio's own."""
    gc.collect()
