"""What holds for all tests."""

import gc
import os
from collections import Counter
from collections.abc import Generator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from tests.support.mesh import poison

# It times its examples, which on a busy machine says nothing of the code.
_PATIENT: Final[dict[str, Any]] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}
# The same examples each time: a change is judged by what it changes. The other one looks for more.
settings.register_profile("patient", derandomize=True, database=None, **_PATIENT)
settings.register_profile("searching", max_examples=1000, **_PATIENT)
settings.load_profile("patient")

# The processes that tests start shall not each compile all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Where meshes have processes of their own, whose memory is poisoned. Elsewhere what is received can
# look like it: compressed constants do.
_WITH_MESHES: Final = frozenset({"conformance", "differential", "e2e"})
poison.search_received()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """No test gets memory that nobody has written."""
    try:
        yield
    finally:
        found = poison.take_found()
        if found and _WITH_MESHES.intersection(item.path.parts):
            pytest.fail("\n".join(found[:5]))


def pytest_collection_finish() -> None:
    """Thousands of tests are collected: no collection of garbage shall look at them again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were skipped, a line for each reason."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(each.longrepr[2].removeprefix("Skipped: ") for each in skipped)
    if reasons:
        terminalreporter.section("skipped, and what was missing", "-")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5}  {reason.splitlines()[0]}")
