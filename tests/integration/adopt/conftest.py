"""Fixtures of the tests of adopt's proxy."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def _without_garbage_collection() -> Iterator[None]:
    """Have only the last reference release an object."""
    gc.disable()
    yield
    gc.enable()
