"""Which instances load at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue

import pytest

from nereid_executor.instances.load_slots import LoadSlots

LIMIT_S = 20.0
PATIENT = 3600.0


class Loads:
    """Loads in threads, each of which ends when the test says so."""

    def __init__(self, slots: LoadSlots) -> None:
        self.slots = slots
        self.begun: SimpleQueue[str] = SimpleQueue()
        self.ends: dict[str, threading.Event] = {}
        self.threads: list[threading.Thread] = []

    def start(self, *names: str) -> None:
        """Names: a model, and a number."""
        for name in names:
            self.ends[name] = threading.Event()
            waiting = len(self.slots._waiting) + len(self.slots._running)
            thread = threading.Thread(target=self._load, args=(name,))
            thread.start()
            self.threads.append(thread)
            while len(self.slots._waiting) + len(self.slots._running) == waiting:
                pass

    def _load(self, name: str) -> None:
        with self.slots.hold(name[0]):
            self.begun.put(name)
            self.ends[name].wait()

    def next(self) -> str:
        return self.begun.get(timeout=LIMIT_S)

    def none_begins(self) -> bool:
        try:
            self.begun.get(timeout=0.02)
        except Empty:
            return True
        return False

    def close(self) -> None:
        for end in self.ends.values():
            end.set()
        for thread in self.threads:
            thread.join(LIMIT_S)


@pytest.fixture
def loads(request: pytest.FixtureRequest) -> Iterator[Loads]:
    loads = Loads(LoadSlots(*request.param))
    yield loads
    loads.close()


@pytest.mark.parametrize("loads", [(1, PATIENT)], indirect=True)
def test_no_more_load_at_a_time(loads: Loads) -> None:
    loads.start("a1", "b1")
    assert loads.next() == "a1"
    assert loads.none_begins()
    loads.ends["a1"].set()
    assert loads.next() == "b1"


@pytest.mark.parametrize("loads", [(2, PATIENT)], indirect=True)
def test_models_take_turns(loads: Loads) -> None:
    loads.start("a1", "b1", "a2", "a3", "c1")
    assert {loads.next(), loads.next()} == {"a1", "b1"}
    loads.ends["b1"].set()
    assert loads.next() == "c1"


@pytest.mark.parametrize("loads", [(2, PATIENT)], indirect=True)
def test_a_model_that_holds_all_slots_leaves_another_to_others(loads: Loads) -> None:
    loads.start("a1", "a2", "a3", "b1", "c1")
    assert {loads.next(), loads.next(), loads.next()} == {"a1", "a2", "b1"}
    assert loads.none_begins()


@pytest.mark.parametrize("loads", [(2, 0.01)], indirect=True)
def test_what_takes_very_long_does_not_count(loads: Loads) -> None:
    loads.start("a1", "b1", "a2", "c1", "d1")
    assert {loads.next() for _ in range(5)} == {"a1", "b1", "a2", "c1", "d1"}
