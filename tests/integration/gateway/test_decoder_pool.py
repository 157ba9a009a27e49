"""Decoder processes: what becomes of jobs, and of processes, when all goes well and when not."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from nereid.core.errors import Internal, InvalidArgument, NotFound, Unavailable
from nereid_gateway.plane.decoding.pool import DecoderPool, PoolLimits
from tests.support.gateway import decoder_jobs
from tests.support.mesh.mesh import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

PEER = "10.0.0.1:5"


@asynccontextmanager
async def pool_of(processes: int = 1, **limits: Any) -> AsyncIterator[DecoderPool]:
    """Of jobs that count as long, unless limits say otherwise."""
    pool = DecoderPool(PoolLimits(**{"processes": processes, "long_bytes": -1, **limits}))
    try:
        yield pool
    finally:
        pool.close()


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


async def wait_until_read(fifo: Path) -> int:
    """Wait until a job reads the FIFO; the descriptor that ends the job when it is closed."""
    return await asyncio.wait_for(asyncio.to_thread(os.open, fifo, os.O_WRONLY), 20)


def blocked(
    pool: DecoderPool, fifo: Path, blobs: Sequence[bytes | memoryview] = ()
) -> asyncio.Task[Any]:
    return asyncio.create_task(pool.run(PEER, decoder_jobs.wait_for, str(fifo), blobs=blobs))


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_a_job_returns_a_value_and_blobs() -> None:
    async with pool_of() as pool:
        blobs: list[bytes | memoryview] = [b"a", memoryview(bytes(3 << 20)), b""]
        value, out = await pool.run(PEER, decoder_jobs.swap, {"x": 1.5}, blobs=blobs)
        assert value == {"x": 1.5}
        assert out == blobs[::-1]


async def test_errors_of_jobs_are_those_of_the_loop() -> None:
    async with pool_of() as pool:
        with pytest.raises(NotFound, match="there is none") as caught:
            await pool.run(PEER, decoder_jobs.refuse)
        assert caught.value.accepted
        with pytest.raises(Internal, match="internal error"):
            await pool.run(PEER, decoder_jobs.fail)
        assert (await pool.run(PEER, decoder_jobs.swap, 1))[0] == 1


async def test_a_killed_process_fails_its_job_and_no_other(fifo: Path) -> None:
    async with pool_of() as pool:
        killed = blocked(pool, fifo)
        waiting = asyncio.create_task(pool.run("10.0.0.2:1", decoder_jobs.swap, "next"))
        descriptor = await wait_until_read(fifo)
        *_, pid = pool.pids
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match="has ended; it may be sent again"):
            await killed
        assert (await waiting)[0] == "next"
        assert pid not in pool.pids
        os.close(descriptor)


async def test_a_job_that_takes_too_long_is_ended_with_its_process(fifo: Path) -> None:
    async with pool_of(job_timeout_s=0.5) as pool:
        with pytest.raises(Unavailable, match=r"more than 0\.5 s to decode"):
            await pool.run(PEER, decoder_jobs.wait_for, str(fifo))


async def test_a_process_has_its_limit_of_memory() -> None:
    async with pool_of(memory_bytes=64 << 20) as pool:
        with pytest.raises(InvalidArgument, match="more memory to decode than 67108864 bytes"):
            await pool.run(PEER, decoder_jobs.allocate, 128 << 20)
        assert (await pool.run(PEER, decoder_jobs.allocate, 1 << 20))[0] == 1 << 20


async def test_where_memory_runs_out_a_decoder_process_is_killed_first() -> None:
    async with pool_of() as pool:
        score, _ = await pool.run(PEER, decoder_jobs.read, "/proc/self/oom_score_adj")
        assert score == "1000\n"


async def test_a_cancelled_job_is_not_begun(fifo: Path, tmp_path: Path) -> None:
    async with pool_of() as pool:
        running = blocked(pool, fifo)
        descriptor = await wait_until_read(fifo)
        never = tmp_path / "never"
        os.mkfifo(never)
        cancelled = blocked(pool, never)
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        os.close(descriptor)
        await running
        assert (await pool.run(PEER, decoder_jobs.swap, "after"))[0] == "after"


async def test_peers_are_served_in_turn(fifo: Path) -> None:
    async with pool_of() as pool:
        running = blocked(pool, fifo)
        descriptor = await wait_until_read(fifo)
        order: list[str] = []

        async def job(peer: str, name: str) -> None:
            value, _ = await pool.run(peer, decoder_jobs.swap, name)
            order.append(value)

        greedy = [asyncio.create_task(job("10.0.0.1:5", f"greedy {n}")) for n in range(5)]
        await asyncio.sleep(0)
        modest = asyncio.create_task(job("10.0.0.2:1", "modest"))
        await asyncio.sleep(0)
        os.close(descriptor)
        await asyncio.gather(running, modest, *greedy)
        assert order.index("modest") == 1


async def test_more_than_may_wait_is_refused_at_once(fifo: Path) -> None:
    async with pool_of(max_waiting_bytes=1000) as pool:
        running = blocked(pool, fifo)
        descriptor = await wait_until_read(fifo)
        first = asyncio.create_task(pool.run(PEER, decoder_jobs.swap, 1, blobs=[bytes(400)]))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="Exceeds maximum queue size"):
            await pool.run(PEER, decoder_jobs.swap, 2, blobs=[bytes(400)])
        os.close(descriptor)
        await asyncio.gather(running, first)


async def test_short_jobs_do_not_wait_behind_long_ones(fifo: Path) -> None:
    async with pool_of(long_bytes=100) as pool:
        running = blocked(pool, fifo, blobs=[bytes(200)])
        descriptor = await wait_until_read(fifo)
        waiting = asyncio.create_task(pool.run(PEER, decoder_jobs.swap, 1, blobs=[bytes(200)]))
        for number in range(3):
            assert (await pool.run(PEER, decoder_jobs.swap, number))[0] == number
        assert len(pool.pids) == 2
        assert not waiting.done()
        os.close(descriptor)
        await asyncio.gather(running, waiting)


async def test_a_process_for_short_jobs_starts_with_the_first_long_one() -> None:
    async with pool_of() as pool:
        await pool.run(PEER, decoder_jobs.swap, 1)
        await asyncio.to_thread(until, lambda: len(pool.pids) == 2, "the other process")


async def test_short_jobs_have_the_other_processes_too(fifo: Path, tmp_path: Path) -> None:
    async with pool_of(long_bytes=100) as pool:
        second = tmp_path / "second"
        os.mkfifo(second)
        running = [blocked(pool, each) for each in (fifo, second)]
        descriptors = [await wait_until_read(each) for each in (fifo, second)]
        for each in descriptors:
            os.close(each)
        await asyncio.gather(*running)


async def test_a_long_job_without_a_client_is_ended(fifo: Path) -> None:
    async with pool_of(abandoned_s=0.01) as pool:
        abandoned = blocked(pool, fifo)
        descriptor = await wait_until_read(fifo)
        *_, pid = pool.pids
        next_job = asyncio.create_task(pool.run(PEER, decoder_jobs.swap, "next"))
        await asyncio.sleep(0)
        abandoned.cancel()
        assert (await next_job)[0] == "next"
        assert ended(pid)
        os.close(descriptor)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_the_end_of_a_job_without_a_client_harms_no_other(
    fifo: Path, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    """A loop that is held up sees that the job has ended only after it has killed the process."""

    async def scenario() -> None:
        async with pool_of(abandoned_s=0.02) as pool:
            abandoned = blocked(pool, fifo)
            descriptor = await wait_until_read(fifo)
            next_job = asyncio.create_task(pool.run("10.0.0.2:1", decoder_jobs.swap, "next"))
            abandoned.cancel()
            with pytest.raises(asyncio.CancelledError):
                await abandoned
            os.close(descriptor)
            time.sleep(0.1)  # noqa: ASYNC251 - holds up the loop
            assert (await next_job)[0] == "next"

    run(scenario())


async def test_a_crash_is_not_to_be_repeated() -> None:
    async with pool_of() as pool:
        with pytest.raises(Internal, match=r"has crashed \(signal 11\).*--decoder-memory-bytes"):
            await pool.run(PEER, decoder_jobs.crash)
        assert (await pool.run(PEER, decoder_jobs.swap, 1))[0] == 1


async def test_a_request_that_a_process_cannot_hold_is_refused() -> None:
    async with pool_of(memory_bytes=64 << 20) as pool:
        with pytest.raises(InvalidArgument, match="more memory to decode"):
            await pool.run(PEER, decoder_jobs.swap, 1, blobs=[bytes(128 << 20)])


async def test_a_job_that_failed_keeps_nothing() -> None:
    async with pool_of() as pool:
        segment = bytearray(100)
        gc.disable()
        try:
            with pytest.raises(NotFound):
                await pool.run(PEER, decoder_jobs.refuse, blobs=[memoryview(segment)])
            # Refused as long as somebody has a view of it.
            segment.append(1)
        finally:
            gc.enable()


async def test_an_idle_process_ends_and_another_one_starts() -> None:
    async with pool_of(idle_s=0.05) as pool:
        await pool.run(PEER, decoder_jobs.swap, 1)
        *_, pid = pool.pids
        await asyncio.to_thread(until, lambda: ended(pid), "the idle process to end")
        assert (await pool.run(PEER, decoder_jobs.swap, 2))[0] == 2


async def test_a_second_process_starts_only_when_the_first_is_busy(fifo: Path) -> None:
    async with pool_of(2) as pool:
        for number in range(3):
            await pool.run(PEER, decoder_jobs.swap, number)
        before = len(pool.pids)
        running = blocked(pool, fifo)
        descriptor = await wait_until_read(fifo)
        assert (await pool.run(PEER, decoder_jobs.swap, "beside"))[0] == "beside"
        assert len(pool.pids) == before + 1
        os.close(descriptor)
        await running


async def test_without_processes_jobs_run_in_the_loop() -> None:
    async with pool_of(0) as pool:
        assert await pool.run(PEER, decoder_jobs.swap, 1, blobs=[b"a", b"b"]) == (1, [b"b", b"a"])
        with pytest.raises(NotFound):
            await pool.run(PEER, decoder_jobs.refuse)
        assert pool.pids == []


async def test_a_process_knows_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEREID_CACHE_REDIS_PASSWORD", "secret")
    async with pool_of() as pool:
        names, _ = await pool.run(PEER, decoder_jobs.environment)
    assert not [name for name in names if name.startswith("NEREID")]


async def test_jobs_that_are_left_fail_when_the_pool_closes(fifo: Path) -> None:
    async with pool_of() as pool:
        running = blocked(pool, fifo)
        descriptor = await wait_until_read(fifo)
        *_, pid = pool.pids
        waiting = asyncio.create_task(pool.run(PEER, decoder_jobs.swap, 1))
        await asyncio.sleep(0)
        pool.close()
        for each in (waiting, running):
            with pytest.raises(Unavailable):
                await each
        await asyncio.to_thread(until, lambda: ended(pid), "the process to end")
        os.close(descriptor)


_PARENT = """
import asyncio, sys
from nereid_gateway.plane.decoding.pool import DecoderPool, PoolLimits
from tests.support.gateway import decoder_jobs

async def main():
    pool = DecoderPool(PoolLimits(processes=1))
    await pool.run("a:1", decoder_jobs.swap, 1)
    print(pool.pids[0], flush=True)
    await pool.run("a:1", decoder_jobs.wait_for, sys.argv[1])

asyncio.run(main())
"""


def test_processes_end_with_their_gateway(fifo: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(fifo)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        descriptor = os.open(fifo, os.O_WRONLY)
        assert not ended(pid)
        parent.kill()
    until(lambda: ended(pid), "the decoder process to end with its parent")
    os.close(descriptor)
