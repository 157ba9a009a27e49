"""The recorder, and a process of copies that is killed."""

import asyncio
import os
import signal

from nereid.comparison.process import ReportProcess
from nereid.comparison.rules import parse_rules
from nereid.comparison.tally import TallyOptions
from nereid_adopt.calls.traffic import SequenceStep, Side
from nereid_adopt.copies.process import CopyOptions
from nereid_adopt.proxy.recorder import LOST, CopiedCall, HttpReply, Recorder

_NOBODY = ("127.0.0.1:1", "127.0.0.1:1")
_REPLY = HttpReply(200, (b"{}",))


async def test_a_sequence_has_copies_until_a_checkpoint_has_the_last_one() -> None:
    options = CopyOptions(_NOBODY, _NOBODY, parse_rules({}), TallyOptions(), 5)
    process = ReportProcess("nereid_adopt.copies", options, max_queued_bytes=1 << 20)
    recorder = Recorder(process)

    def submit(sequence_id: str) -> None:
        step = SequenceStep("m", sequence_id, start=True, end=True)
        call = CopiedCall("m", Side.OLD, "/", (), (b"{}",), _REPLY, 0.0, step)
        recorder.record_later(lambda: recorder.submit(call, 0))

    await process.start()
    try:
        assert not recorder.has_copies(("m", "1"))
        for sequence_id in ("1", "2", "1"):
            submit(sequence_id)
        assert recorder.has_copies(("m", "1"))
        async with asyncio.timeout(30):
            while recorder.has_copies(("m", "1")):
                await process.checkpoint()
                recorder.on_checkpoint()
        assert not recorder.has_copies(("m", "2"))
    finally:
        await process.close()


async def test_copies_that_no_checkpoint_has_are_lost_with_the_process() -> None:
    options = CopyOptions(_NOBODY, _NOBODY, parse_rules({}), TallyOptions(), 5)
    process = ReportProcess("nereid_adopt.copies", options, max_queued_bytes=1 << 20)
    recorder = Recorder(process)

    def submit(number: int) -> None:
        recorder.submit(CopiedCall(f"m{number}", Side.OLD, "/", (), (b"{}",), _REPLY, 0.0), 0)

    await process.start()
    try:
        for number in range(1100):
            submit(number)
        settled = 0
        async with asyncio.timeout(30):
            while settled < 1100:
                settled = sum((await process.document())["not_compared"].values())
        assert process._process is not None
        os.kill(process._process.pid, signal.SIGSTOP)
        for number in (0, 0, 1050, 1051):
            submit(number)
        os.kill(process._process.pid, signal.SIGKILL)
        await process.wait_ended()
    finally:
        await process.close()
    recorder.on_process_lost(())
    # Names beyond the bound count as one.
    assert recorder.not_copied == {("m0", LOST): 2, ("(other)", LOST): 2}
    recorder.on_process_lost(())
    assert recorder.not_copied.total() == 4
