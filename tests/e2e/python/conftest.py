"""With NEREID_SANDBOX_MODELS=true these tests run in the sandbox, but for those that cannot."""

import os

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose models do what a sandbox refuses."""
    mark = item.get_closest_marker("unconfined")
    if mark is not None and os.environ.get("NEREID_SANDBOX_MODELS") == "true":
        pytest.skip(mark.args[0])
