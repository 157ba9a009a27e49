"""Settings and checks of all tests."""

import gc
import os
import signal
from collections import Counter
from collections.abc import Generator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from tests.support.mesh import poison

# Hypothesis times its examples, which on a busy machine says nothing about the code.
_PATIENT: Final[dict[str, Any]] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}
# `patient` has the same examples each time, so that a change is judged by what it changes;
# `searching` looks for more.
settings.register_profile("patient", derandomize=True, database=None, **_PATIENT)
settings.register_profile("searching", max_examples=1000, **_PATIENT)
settings.load_profile("patient")

# Without bytecode each process that a test starts would compile all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell ignores Ctrl-C for what it starts in the background, and children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Folders whose meshes have processes of their own, with poisoned memory. Elsewhere received bytes
# can look like the poison: compressed constants do.
_WITH_MESHES: Final = frozenset({"conformance", "differential", "e2e"})
poison.search_received()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that has received memory that nobody has written."""
    try:
        yield
    finally:
        found = poison.take_found()
        if found and _WITH_MESHES.intersection(item.path.parts):
            pytest.fail("\n".join(found[:5]))


def pytest_collection_finish() -> None:
    """Keep garbage collections from traversing the thousands of collected tests."""
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
