"""`python -m nereid_executor` as a process: its signals and its exit codes."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from nereid.pb import nereid_pb2 as pb
from tests.support.executor.executor_world import SLOW, WAIT_S, Scheduler, slow, turns
from tests.support.models.onnx_models import response_of

pytestmark = pytest.mark.slow


@asynccontextmanager
async def process(*flags: str) -> AsyncIterator[Process]:
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "nereid_executor", *flags, stderr=PIPE
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def exit_code(started: Process) -> int:
    return await asyncio.wait_for(started.wait(), WAIT_S)


async def test_sigterm_ends_it_after_the_running_batch(tmp_path: Path) -> None:
    scheduler = Scheduler()
    path = str(slow(tmp_path / "1"))
    async with (
        scheduler.serving(tmp_path / "socket") as address,
        process(f"--scheduler-address={address}", "--name=p", "--gpus=none") as started,
    ):
        session, hello = await scheduler.accept_session()
        assert hello.name == "p"
        session.load(7, SLOW, path)
        stream = await scheduler.accept_stream()
        stream.send(turns(5000))
        started.send_signal(signal.SIGTERM)
        assert (await session.event()).HasField("leaving")
        (response,) = (await stream.responses()).responses
        assert response_of(response)[0][3] == np.int64(5000).tobytes()
        assert await exit_code(started) == 0
        await session.wait()


async def test_a_scheduler_drains_it_and_all_schedulers_know(tmp_path: Path) -> None:
    asking, other = Scheduler(), Scheduler()
    path = str(slow(tmp_path / "1"))
    async with (
        asking.serving(tmp_path / "a") as first,
        other.serving(tmp_path / "b") as second,
        process(f"--scheduler-address={first},{second}", "--gpus=none") as started,
    ):
        session, hello = await asking.accept_session()
        assert hello.drains
        other_session, _ = await other.accept_session()
        other_session.load(7, SLOW, path)
        stream = await other.accept_stream()
        stream.send(turns(5000))
        session.call.send(pb.ExecutorCommand(drain=pb.Drain()).SerializeToString())
        assert (await session.event()).HasField("leaving")
        assert (await other_session.event()).HasField("leaving")
        (response,) = (await stream.responses()).responses
        assert response_of(response)[0][3] == np.int64(5000).tobytes()
        assert await exit_code(started) == 0


async def test_a_batch_that_takes_too_long_is_cut_off(tmp_path: Path) -> None:
    scheduler = Scheduler()
    path = str(slow(tmp_path / "1"))
    async with (
        scheduler.serving(tmp_path / "socket") as address,
        process(
            f"--scheduler-address={address}", "--exit-timeout-secs=0.05", "--gpus=none"
        ) as started,
    ):
        session, _ = await scheduler.accept_session()
        session.load(7, SLOW, path)
        stream = await scheduler.accept_stream()
        stream.send(turns(10_000_000))
        started.send_signal(signal.SIGTERM)
        assert await exit_code(started) == 1
        await stream.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_waits_for_a_scheduler_until_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with process(
        f"--scheduler-address=unix:{tmp_path}/none", "--log-verbose=1", "--log-info=false"
    ) as started:
        assert started.stderr is not None
        # It has tried once, so it handles signals.
        async with asyncio.timeout(WAIT_S):
            while b"the stream Join ended" not in await started.stderr.readline():
                pass
        started.send_signal(number)
        assert await exit_code(started) == 0


async def test_a_bad_flag_is_one_line_and_exit_code_2() -> None:
    async with process("--gpus=x", "--what") as started:
        _, text = await asyncio.wait_for(started.communicate(), WAIT_S)
        assert started.returncode == 2
        assert sorted(text.decode().splitlines()) == [
            ("nereid_executor: --gpus: 'x': expected all, none, or GPUs' numbers such as 0,2"),
            "nereid_executor: unknown argument '--what'",
        ]
