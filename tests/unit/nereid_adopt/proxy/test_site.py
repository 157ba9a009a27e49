from nereid.comparison.process import ReportProcess
from nereid_adopt.calls.requests import NO_FACTS, RequestFacts
from nereid_adopt.calls.traffic import SequenceStep, Side
from nereid_adopt.proxy.recorder import REUSED_ID, Recorder
from nereid_adopt.proxy.site import Site

_NOBODY = ("127.0.0.1:1", "127.0.0.1:1")


def site() -> Site:
    return Site(_NOBODY, _NOBODY, Recorder(ReportProcess("none", None, max_queued_bytes=0)))


def step(*, start: bool = False) -> SequenceStep:
    return SequenceStep("m", "1", start=start, end=False)


async def test_a_sequence_fails_over_to_a_server_that_has_its_copies() -> None:
    found = site()
    for part in (None, step(start=True), step()):
        assert found.may_fail_over(part)
        found.traffic.note_step(step(start=True), Side.NEW)
        assert await found.fail_over(part)
        assert (found.traffic.side_of_request(step()) is Side.OLD) is (part is not None)
    assert found.recorder.failovers == 3


async def test_without_copies_only_the_start_of_a_sequence_fails_over() -> None:
    found = site()
    found.traffic.copied_percent = 0
    assert await found.fail_over(None)
    assert await found.fail_over(step(start=True))
    found.traffic.note_step(step(start=True), Side.NEW)
    assert not await found.fail_over(step())
    assert found.traffic.side_of_request(step()) is Side.NEW
    assert found.recorder.failovers == 2


async def test_a_sequence_with_a_gap_does_not_fail_over() -> None:
    found = site()
    found.traffic.note_step(step(start=True), Side.NEW)
    found.recorder.skip("m", "too large", step(start=True))
    assert not await found.fail_over(step())


async def test_a_gap_that_is_found_at_last_prevents_the_failover() -> None:
    """The request before was not recorded yet when its server was lost."""
    found = site()
    found.recorder.record_later(lambda: found.recorder.skip("m", "too large", step()))
    assert found.may_fail_over(step())
    assert not await found.fail_over(step())


def test_a_start_beside_copies_with_its_id_is_not_copied() -> None:
    found = site()
    begun = RequestFacts(step(start=True))
    assert found.plan(begun) == (Side.OLD, True)
    found.traffic.weight = 100
    found.recorder._copied_sequences[step().key] = 1
    assert found.plan(begun) == (Side.OLD, False)
    assert found.recorder.not_copied == {("m", REUSED_ID): 1}
    assert found.recorder.is_broken(step())
    found.recorder.on_process_lost(())
    assert found.plan(begun) == (Side.NEW, True)


def test_inferences_that_are_not_sampled_are_one_number() -> None:
    found = site()
    assert found.plan(NO_FACTS) == (Side.OLD, True)
    found.traffic.copied_percent = 0
    assert found.plan(NO_FACTS) == (Side.OLD, False)
    assert found.recorder.not_sampled == 1
