"""The supervisor keeps real processes running and drains them in order."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from nereid_mesh.serve.child_process import StandbyProcess
from nereid_mesh.serve.plan import ChildSpec, SupervisionRules
from nereid_mesh.serve.planned_mesh import match_standbys
from nereid_mesh.serve.supervisor import Supervisor
from tests.support.waiting import until

pytestmark = pytest.mark.slow

LIMIT_S = 20
# Writes a line at its start and at SIGTERM, which ends it.
ORDERLY = """
import signal, sys, threading
name, path = sys.argv[1:]
def note(text):
    with open(path, "a") as file:
        file.write(f"{name} {text}\\n")
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: (note("ended"), ended.set()))
note("started")
ended.wait()
"""
FAILING = "import sys; open(sys.argv[2], 'a').write('ran\\n'); sys.exit(1)"
UNRESPONSIVE = """
import signal, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[2], "a").write("unresponsive\\n")
threading.Event().wait()
"""
# Drains until its time limit, and writes a line at the end.
SLOW = """
import signal, sys, threading
path = sys.argv[2]
def note(text):
    with open(path, "a") as file:
        file.write(text + "\\n")
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
note("started")
ended.wait()
threading.Event().wait(1.0)
note("ended")
"""


def child(code: str, name: str, journal: Path, stage: int = 0) -> ChildSpec:
    return ChildSpec(name, (sys.executable, "-P", "-c", code, name, str(journal)), stage)


def rules(exit_timeout_s: float, watchdog_timeout_s: float = 0) -> SupervisionRules:
    return SupervisionRules(exit_timeout_s=exit_timeout_s, watchdog_timeout_s=watchdog_timeout_s)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """What the children write to."""
    return tmp_path / "journal"


@contextlib.asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[None]:
    """Its children run meanwhile, and end afterwards in good order."""
    run = asyncio.create_task(supervisor.run())
    yield
    supervisor.stop()
    assert await asyncio.wait_for(run, LIMIT_S) == 0


async def lines(journal: Path, count: int) -> list[str]:
    """The journal once it has so many lines; other processes write it, so this polls."""
    await until(
        lambda: journal.exists() and len(journal.read_text().splitlines()) >= count, LIMIT_S
    )
    return journal.read_text().splitlines()


async def test_stages_end_one_after_the_other(journal: Path) -> None:
    specs = [child(ORDERLY, "second", journal, 1), child(ORDERLY, "first", journal, 0)]
    async with running(Supervisor(specs, rules(LIMIT_S))):
        await lines(journal, 2)
    assert (await lines(journal, 4))[2:] == ["first ended", "second ended"]


async def test_a_child_that_ends_is_restarted(journal: Path) -> None:
    async with running(Supervisor([child(FAILING, "failing", journal)], rules(LIMIT_S))):
        assert await lines(journal, 3) == ["ran"] * 3


DRAINED = "open(__import__('sys').argv[2], 'a').write('ran\\n')"


async def test_a_child_that_was_asked_to_end_is_restarted_without_a_warning(
    journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(Supervisor([child(DRAINED, "drained", journal)], rules(LIMIT_S))):
        assert await lines(journal, 2) == ["ran"] * 2
    ends = [each for each in caplog.records if "drained ended (exit code 0)" in each.getMessage()]
    assert ends
    assert {each.levelno for each in ends} == {logging.INFO}


async def test_refused_settings_end_everything_with_2(journal: Path) -> None:
    refusing = ChildSpec("refusing", (sys.executable, "-c", "raise SystemExit(2)"), 0)
    supervisor = Supervisor([refusing, child(ORDERLY, "other", journal)], rules(LIMIT_S))
    assert await asyncio.wait_for(supervisor.run(), LIMIT_S) == 2


async def test_a_child_that_does_not_end_in_time_is_killed(journal: Path) -> None:
    async with running(Supervisor([child(UNRESPONSIVE, "unresponsive", journal)], rules(0))):
        await lines(journal, 1)


async def test_a_child_that_drains_until_the_limit_may_still_finish(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two seconds are not enough where the machine itself stands still.
    monkeypatch.setattr("nereid_mesh.serve.supervisor._FINAL_RESPONSES_S", float(LIMIT_S))
    async with running(Supervisor([child(SLOW, "slow", journal)], rules(1.0))):
        await lines(journal, 1)
    assert journal.read_text().split() == ["started", "ended"]


async def test_a_second_signal_does_not_wait(journal: Path) -> None:
    supervisor = Supervisor([child(UNRESPONSIVE, "unresponsive", journal)], rules(10 * LIMIT_S))
    async with running(supervisor):
        await lines(journal, 1)
        supervisor.stop()


# As a service does, until it is stopped; the restarted one writes the second line.
BEATING = """
import asyncio, os, sys
from nereid.process.liveness import start_heartbeat
async def main():
    start_heartbeat(os.environ)
    open(sys.argv[2], "a").write(f"{os.getpid()}\\n")
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_child_that_hangs_is_killed_and_restarted(journal: Path) -> None:
    specs = [child(BEATING, "beating", journal)]
    supervisor = Supervisor(specs, rules(0, watchdog_timeout_s=2))
    run = asyncio.create_task(supervisor.run())
    (pid,) = map(int, await lines(journal, 1))
    # It is alive for longer than the limit.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(run), 4)
    assert len(journal.read_text().splitlines()) == 1
    os.kill(pid, signal.SIGSTOP)
    _, restarted = map(int, await lines(journal, 2))
    assert restarted != pid
    assert not Path(f"/proc/{pid}").exists()
    supervisor.stop()
    assert await asyncio.wait_for(run, LIMIT_S) == 0


# Writes its process id when it has started, and a line when it is needed.
STANDING_BY = """
import os, sys, threading
from nereid.process.standby import stand_by
def note(text):
    with open(sys.argv[2], "a") as file:
        file.write(f"{os.getpid()} {text}\\n")
note("started")
stand_by(os.environ)
note("serves")
threading.Event().wait()
"""


async def test_a_standby_takes_over_and_gets_a_standby_itself(journal: Path) -> None:
    spec = replace(child(STANDING_BY, "standing", journal), standby_after_s=0.01)
    async with running(Supervisor([spec], rules(0))):
        standby = ""
        for count in (3, 5, 7):
            written = [line.split() for line in await lines(journal, count)]
            # On a busy machine a standby may have started before the process that serves.
            serving = [pid for pid, text in written if text == "serves"][-1]
            assert standby in ("", serving)
            served = {pid for pid, text in written if text == "serves"}
            (standby,) = {pid for pid, text in written if text == "started"} - served
            os.kill(int(serving), signal.SIGKILL)
        await lines(journal, 9)
    pids = {line.split()[0] for line in journal.read_text().splitlines()}
    assert len(pids) == 5
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


# Its name is its process id.
EARLY = (
    "import os; from nereid.process.standby import stand_by; stand_by(os.environ)\n"
    + ORDERLY.replace("name, path = sys.argv[1:]", "name, path = os.getpid(), sys.argv[2]")
)
UNLIKELY = "import threading; threading.Event().wait()"


async def test_a_process_that_was_started_early_serves_first(journal: Path) -> None:
    specs = [child(EARLY, "early", journal), child(ORDERLY, "other", journal)]
    early, unlikely = (
        StandbyProcess((sys.executable, "-P", "-c", each)) for each in (EARLY, UNLIKELY)
    )
    left = [unlikely, early]
    standbys = match_standbys(specs, left)
    assert (standbys, left) == ({specs[0].name: early}, [unlikely])
    unlikely.kill()
    async with running(Supervisor(specs, rules(LIMIT_S), standbys=standbys)):
        assert sorted(await lines(journal, 2)) == [f"{early.pid} started", "other started"]


async def test_a_standby_that_has_ended_is_not_relied_on(journal: Path) -> None:
    spec = replace(child(STANDING_BY, "standing", journal), standby_after_s=0.01)
    async with running(Supervisor([spec], rules(0))):
        serving, _, standby = (each.split()[0] for each in await lines(journal, 3))
        for pid in (standby, serving):
            os.kill(int(pid), signal.SIGKILL)
        written = [each.split() for each in await lines(journal, 6)]
        serves = [pid for pid, text in written if text == "serves"][-1]
        assert serves not in (serving, standby)
        assert [serves, "started"] in written
