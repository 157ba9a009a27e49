"""The loop that is run by whoever waits for it: what comes, from which threads, failures, ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import queue
import selectors
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from nereid_executor.backends.python.direct.loop_driver import ClosedError, LoopDriver

# Only a test that fails waits so long.
LIMIT_S = 20.0
OWN_THREAD = "nereid-link"


class Site:
    """A driver, what is awaited of it, and its failures."""

    def __init__(self, idle_s: float = 3600.0) -> None:
        self.pending: dict[int, queue.SimpleQueue[Any]] = {}
        self.failures: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.driver = LoopDriver(
            lambda: bool(self.pending),
            lambda: self.failures.put(threading.current_thread().name),
            idle_s,
        )

    def call(self, work: Callable[[Callable[[Any], None]], None]) -> Any:
        """Run the loop until work, or what it leaves to others, has responded."""
        received: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def respond(value: Any) -> None:
            self.pending.pop(id(received), None)
            received.put(value)
            self.driver.stop()

        self.pending[id(received)] = received
        try:
            return self.driver.run(lambda: work(respond), received)
        finally:
            self.pending.pop(id(received), None)

    def turns(self, count: int, value: Any) -> Any:
        """The value, after so many turns of the loop."""

        def work(respond: Callable[[Any], None], left: int = count) -> None:
            if left:
                self.driver.loop.call_soon(work, respond, left - 1)
            else:
                respond(value)

        return self.call(work)

    def submitted_thread(self) -> str:
        """The name of the thread that does what is submitted."""
        done: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.driver.submit(lambda: done.put(threading.current_thread().name))
        name = done.get(timeout=LIMIT_S)
        if name == OWN_THREAD:
            # Until it runs the loop no more.
            with self.driver._running:
                pass
        return name

    def close(self) -> None:
        async def last() -> None:
            for received in self.pending.values():
                received.put("closed")

        self.driver.close(last)
        self.driver._thread.join(LIMIT_S)
        assert not self.driver._thread.is_alive()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def site(pool: ThreadPoolExecutor) -> Iterator[Site]:
    made = Site()
    yield made
    # Before the pool, whose threads may wait for it.
    made.close()


def raising(error: BaseException) -> Callable[..., None]:
    def work(*_: Any) -> None:
        raise error

    return work


def test_the_thread_that_waits_runs_the_loop(site: Site) -> None:
    assert site.turns(0, "at once") == "at once"
    assert site.turns(3, "later") == "later"
    name = site.call(lambda respond: respond(threading.current_thread().name))
    assert name == threading.current_thread().name


def test_each_of_several_threads_gets_its_own(site: Site, pool: ThreadPoolExecutor) -> None:
    numbers = range(2000)
    assert list(pool.map(lambda number: site.turns(number % 4, number), numbers)) == [*numbers]


def test_a_later_call_is_served_by_the_own_thread(site: Site, pool: ThreadPoolExecutor) -> None:
    first_responds: queue.SimpleQueue[Callable[[Any], None]] = queue.SimpleQueue()
    first = pool.submit(site.call, first_responds.put)
    respond_to_first = first_responds.get(timeout=LIMIT_S)

    def second(respond: Callable[[Any], None], turns: int = 100) -> None:
        if turns == 100:
            respond_to_first(threading.current_thread().name)
        if turns:
            site.driver.loop.call_soon(second, respond, turns - 1)
        else:
            respond(threading.current_thread().name)

    # The first one does the work of the second, and leaves as soon as it is served.
    assert site.call(second) == OWN_THREAD
    assert first.result(LIMIT_S) != OWN_THREAD


def test_within_another_running_loop_the_own_thread_does_it(site: Site) -> None:
    async def other() -> Any:
        return site.call(lambda respond: respond(threading.current_thread().name))

    assert asyncio.run(other()) == OWN_THREAD
    assert site.turns(1, "and here again") == "and here again"


def test_work_is_done_by_the_own_thread_unless_somebody_runs(
    site: Site, pool: ThreadPoolExecutor
) -> None:
    assert site.submitted_thread() == OWN_THREAD
    responds: queue.SimpleQueue[Callable[[Any], None]] = queue.SimpleQueue()
    waiting = pool.submit(site.call, responds.put)
    respond = responds.get(timeout=LIMIT_S)
    assert site.submitted_thread() not in {OWN_THREAD, threading.current_thread().name}
    site.driver.submit(lambda: respond("done"))
    assert waiting.result(LIMIT_S) == "done"
    assert site.submitted_thread() == OWN_THREAD


def test_what_work_leaves_to_the_next_turn_is_done_as_well(site: Site) -> None:
    """As links do, which send what a turn has for them at its end."""
    done = threading.Event()

    def work() -> None:
        site.driver.loop.call_soon(done.set)

    site.driver.submit(work)
    assert done.wait(LIMIT_S)


def test_what_nobody_announced_is_done_before_long() -> None:
    site = Site(idle_s=0.001)
    done = threading.Event()
    # As what arrives at a socket, it wakes no thread.
    site.driver.loop.call_soon(done.set)
    assert done.wait(LIMIT_S)
    site.close()


# ---- failures


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt(), SystemExit(3)])
def test_what_a_callback_raises_reaches_the_thread_that_runs(
    site: Site, error: BaseException
) -> None:
    with pytest.raises(type(error)) as raised:
        site.call(raising(error))
    assert raised.value is error
    assert site.failures.get(timeout=LIMIT_S) == threading.current_thread().name
    assert site.turns(1, "goes on") == "goes on"
    assert site.failures.empty()


@pytest.mark.parametrize("error", [ValueError("wrong"), SystemExit(3)])
def test_the_own_thread_goes_on_after_a_failure(
    site: Site, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    site.driver.submit(raising(error))
    assert site.failures.get(timeout=LIMIT_S) == OWN_THREAD
    assert site.submitted_thread() == OWN_THREAD
    assert [each.levelno for each in caplog.records] == [logging.ERROR]


def test_what_a_signal_handler_raises_reaches_the_thread_that_runs(
    site: Site, pool: ThreadPoolExecutor
) -> None:
    class Expired(Exception):
        pass

    others: list[Future[Any]] = []

    def expire(_: int, frame: Any) -> None:
        # Where a thread is nearly all the time.
        if frame.f_code is selectors.PollSelector.select.__code__:
            raise Expired

    responds: queue.SimpleQueue[Callable[[Any], None]] = queue.SimpleQueue()

    def begin_other(respond: Callable[[Any], None]) -> None:
        responds.put(respond)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)

    before = signal.signal(signal.SIGALRM, expire)
    try:
        with pytest.raises(Expired):
            site.call(lambda _: others.append(pool.submit(site.call, begin_other)))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # It has interrupted nothing: what others wait for still comes.
    assert site.failures.empty()
    respond = responds.get(timeout=LIMIT_S)
    site.driver.submit(lambda: respond("later"))
    assert others[0].result(LIMIT_S) == "later"
    assert site.turns(1, "goes on") == "goes on"


def test_a_finaliser_may_submit_while_its_thread_does(site: Site) -> None:
    done: queue.SimpleQueue[str] = queue.SimpleQueue()

    class Finalised:
        def __init__(self) -> None:
            self.circle = self

        def __del__(self) -> None:
            site.driver.submit(lambda: done.put("by the finaliser"))

    class Work:
        """What the loop calls; while it is submitted, rubbish is collected."""

        def __call__(self) -> None:
            done.put("by the thread")

    loop = site.driver.loop
    call_soon = loop.call_soon_threadsafe

    def collecting(*args: Any, **options: Any) -> Any:
        loop.call_soon_threadsafe = call_soon  # type: ignore[method-assign]
        Finalised()
        gc.collect()
        return call_soon(*args, **options)

    loop.call_soon_threadsafe = collecting  # type: ignore[assignment]
    site.driver.submit(Work())
    came = {done.get(timeout=LIMIT_S), done.get(timeout=LIMIT_S)}
    assert came == {"by the finaliser", "by the thread"}


def test_the_end_of_a_forked_process_changes_nothing(site: Site, pool: ThreadPoolExecutor) -> None:
    responds: queue.SimpleQueue[Callable[[Any], None]] = queue.SimpleQueue()
    waiting = pool.submit(site.call, responds.put)
    respond = responds.get(timeout=LIMIT_S)
    child = os.fork()
    if not child:
        # As its interpreter does at the end; the thread that runs the loop is the parent's.
        try:
            asyncio.SelectorEventLoop._close_self_pipe(site.driver.loop)  # type: ignore[attr-defined]
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    site.driver.submit(lambda: respond("woken"))
    assert waiting.result(LIMIT_S) == "woken"


# ---- the end


def test_what_was_submitted_is_done_before_the_end() -> None:
    site = Site()
    done: list[str] = []

    async def last() -> None:
        done.append("last")

    # The own thread is busy until all is submitted.
    go = threading.Event()

    def be_busy() -> None:
        go.wait(LIMIT_S)

    site.driver.submit(be_busy)
    for number in range(100):
        site.driver.submit(lambda number=number: done.append(str(number)))  # type: ignore[misc]
    site.driver.close(last)
    site.driver.submit(lambda: done.append("after close()"))
    go.set()
    site.close()
    assert done == [*map(str, range(100)), "after close()", "last"]
    with pytest.raises(ClosedError):
        site.driver.submit(lambda: done.append("too late"))
    with pytest.raises(ClosedError):
        site.turns(0, "too late")
    assert site.driver.loop.is_closed()


def test_the_end_is_reached_though_work_stops_the_loop() -> None:
    site = Site()
    began, go, ended = threading.Event(), threading.Event(), threading.Event()

    async def last() -> None:
        for _ in range(10):
            site.driver.stop()
            await asyncio.sleep(0)
        began.set()
        await asyncio.to_thread(go.wait, LIMIT_S)
        ended.set()

    site.driver.close(last)
    assert began.wait(LIMIT_S)
    with pytest.raises(ClosedError):
        site.driver.submit(lambda: None)
    go.set()
    site.close()
    assert ended.is_set()


def test_threads_that_wait_get_something_at_the_end(pool: ThreadPoolExecutor) -> None:
    site = Site()
    responds: queue.SimpleQueue[Callable[[Any], None]] = queue.SimpleQueue()
    # One runs the loop, the others have it done.
    waiting = [pool.submit(site.call, responds.put) for _ in range(4)]
    waiting_for = [responds.get(timeout=LIMIT_S) for _ in range(4)]

    async def last() -> None:
        for respond in waiting_for:
            respond("closed")

    site.driver.close(last)
    assert [each.result(LIMIT_S) for each in waiting] == ["closed"] * 4
    site.close()


def test_an_end_that_fails_is_an_end(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()

    async def last() -> None:
        raise ValueError("wrong")

    site.driver.close(last)
    site.close()
    assert site.driver.loop.is_closed()
    assert [each.getMessage() for each in caplog.records] == [
        "the link to the scheduler could not be closed"
    ]
