"""How tenures get from the event loop to an instance's thread."""

from __future__ import annotations

import threading
from typing import Any

from nereid_executor.instances.tenure import SchedulerEndpoint, Tenure, Tenures

NOTHING: Any = None


def made() -> Tenure:
    return Tenure(1, SchedulerEndpoint("unix:a"), NOTHING, NOTHING)


def test_one_follows_another() -> None:
    first, second, third = made(), made(), made()
    tenures = Tenures(first)
    assert tenures.add(second)
    assert tenures.wait_after(first) is second
    # One that was given up before the thread had got to it is skipped.
    assert tenures.add(first)
    assert tenures.add(third)
    assert tenures.wait_after(second) is third


def test_the_last_one_ends_the_wait() -> None:
    first = made()
    tenures = Tenures(first)
    found: list[Tenure | None] = []
    thread = threading.Thread(target=lambda: found.append(tenures.wait_after(first)))
    thread.start()
    tenures.set_last()
    thread.join()
    assert found == [None]
    assert not tenures.add(made())
    assert tenures.current is first


def test_what_was_adopted_and_is_to_end_serves_nobody() -> None:
    first = made()
    tenures = Tenures(first)
    assert tenures.add(made())
    tenures.set_last()
    assert tenures.wait_after(first) is None


def test_an_instance_that_has_ended_cannot_be_adopted() -> None:
    tenures = Tenures(made())
    tenures.close()
    assert not tenures.add(made())
