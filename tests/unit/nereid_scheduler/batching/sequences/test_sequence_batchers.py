"""The sequence batcher's rules, one by one; the invariants under any events are beside this."""

from typing import Any

import pytest

from nereid.core.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    Unavailable,
    Unimplemented,
)
from nereid.core.sequence_owners import (
    address_owner,
    owner_of_copies,
    principal_owner,
    sequence_key,
)
from nereid.pb import kserve_pb2
from nereid_scheduler.core.requests.entry import Entry, RequestState
from tests.support.scheduler.samples import head_of
from tests.support.scheduler.sequence_site import DIRECT, OLDEST, SequenceSite

US = 1000
CONTROLS = """
control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [-1, 1] } }
control_input {
  name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] }
}
control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT32 } }
"""


# --- owners

ALICE, BOB = principal_owner("key", "alice"), principal_owner("key", "bob")


class TestOwners:
    def test_sequences_of_two_principals_with_one_id_are_two(self) -> None:
        site = SequenceSite(DIRECT)
        site.enqueue(7, "s", sequence_owner=ALICE)
        error = site.refused(7, sequence_owner=BOB)
        assert isinstance(error, InvalidArgument)
        assert "must specify the START flag" in error.message
        site.enqueue(7, "s", sequence_owner=BOB)
        assert len(site.batcher.sequences) == 2
        site.enqueue(7, "e", sequence_owner=BOB)
        assert len(site.batcher.sequences) == 1
        site.enqueue(7, sequence_owner=ALICE)

    @pytest.mark.parametrize("which", [7, "seven", (1 << 64) - 1])
    def test_a_model_sees_ids_apart(self, which: int | str) -> None:
        site = SequenceSite(DIRECT)
        first = site.enqueue(which, "s", sequence_owner=ALICE)
        second = site.enqueue(which, "s", sequence_owner=BOB)
        third = site.enqueue(which, sequence_owner=BOB)
        ids = [(each.request.parameters or {})["sequence_id"] for each in (first, second, third)]
        assert ids[0] == which
        assert type(ids[1]) is type(which)
        assert ids[1] not in (which, 0, "")
        assert ids[1] == ids[2]

    def test_an_id_is_seen_again_once_the_last_request_is_done(self) -> None:
        site = SequenceSite(DIRECT)
        seen = []
        for owner in (ALICE, BOB, BOB):
            site.enqueue(7, "se", sequence_owner=owner)
            entries = self.executing(site)
            seen.append((entries[0].request.parameters or {})["sequence_id"])
            if owner is ALICE:
                during = site.enqueue(7, "se", sequence_owner=BOB)
                assert (during.request.parameters or {})["sequence_id"] != 7
                site.batcher.remove_entry(during)
                site.expire()
                del during
            site.finish(*entries)
            del entries
        assert seen == [7, 7, 7]

    @staticmethod
    def executing(site: SequenceSite) -> list[Entry]:
        return [each for each in site.rows() if each is not None]

    def test_one_that_begins_anew_keeps_its_id(self) -> None:
        site = SequenceSite(DIRECT)
        site.enqueue(7, "s", sequence_owner=ALICE)
        other = site.enqueue(7, "s", sequence_owner=BOB)
        again = site.enqueue(7, "s", sequence_owner=BOB)
        site.batcher.remove_entry(other)
        after = site.enqueue(7, sequence_owner=BOB)
        assert again.request.parameters is not None
        assert after.request.parameters is not None
        assert again.request.parameters["sequence_id"] == after.request.parameters["sequence_id"]

    @pytest.mark.parametrize("limited", [False, True])
    def test_an_address_owns_nothing(self, limited: bool) -> None:
        site = SequenceSite(DIRECT)
        started = site.enqueue(7, "s", sequence_owner=address_owner("10.0.0.1", limited=limited))
        ended = site.enqueue(7, "e", sequence_owner=address_owner("10.0.0.2", limited=limited))
        assert started.member is not None
        assert ended.member is not None
        assert started.member.sequence is ended.member.sequence
        assert [(each.request.parameters or {})["sequence_id"] for each in (started, ended)] == [
            7,
            7,
        ]


COPIES = owner_of_copies("m", ALICE)


class TestCopies:
    """Sequences of copies for shadows, which take nothing from others."""

    def test_owners_differ_by_model_and_principal_alone(self) -> None:
        anonymous = owner_of_copies("m", "")
        assert len({COPIES, ALICE, owner_of_copies("n", ALICE), anonymous}) == 4
        assert owner_of_copies("m", address_owner("10.0.0.1", limited=True)) == anonymous

    @pytest.mark.parametrize("owner", ["", ALICE])
    def test_an_id_in_use_is_another_for_the_copies(self, owner: str) -> None:
        site = SequenceSite(DIRECT, max_batch_size=4)
        for owners in ((owner, COPIES), (COPIES, owner)):
            made = [site.enqueue(7, "s", sequence_owner=each) for each in owners]
            ids = [(each.request.parameters or {})["sequence_id"] for each in made]
            assert ids[0] == 7 != ids[1]
            for each in made:
                site.batcher.remove_entry(each)
            assert not len(site.batcher.sequences)
            del made, each

    def test_they_make_way_for_a_sequence_without_a_slot(self) -> None:
        site = SequenceSite(DIRECT, max_batch_size=2)
        first = site.enqueue(1, "s", sequence_owner=COPIES, is_shadow=True)
        site.enqueue(2, "s", sequence_owner=COPIES, is_shadow=True)
        entry = site.enqueue(4, "s")
        assert entry.member is not None
        assert entry.member.sequence.slot is not None
        assert [(each, error.message[:16]) for each, error in site.batcher.expire_entries(0)] == [
            (first, "a copy runs only")
        ]

    @pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
    def test_those_of_an_earlier_sequence_do_not_join_a_later_one(self, strategy: str) -> None:
        site = SequenceSite(strategy, max_batch_size=2)
        copy: dict[str, Any] = {"sequence_owner": COPIES, "is_shadow": True}
        first = site.enqueue(7, "s", copied_sequence=5, **copy)
        second = site.enqueue(7, "s", copied_sequence=6, **copy)
        error = site.refused(7, copied_sequence=5, **copy)
        assert (type(error), error.message[:16]) == (Unavailable, "a copy runs only")
        last = site.enqueue(7, "e", copied_sequence=6, **copy)
        assert first.member is not None
        assert second.member is not None
        assert last.member is not None
        # The model sees the same id, and one after the other.
        assert first.member.sequence is second.member.sequence is last.member.sequence

    @pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
    def test_one_that_is_given_up_frees_its_slot(self, strategy: str) -> None:
        site = SequenceSite(strategy, max_batch_size=1)
        site.enqueue(7, "s", sequence_owner=COPIES, is_shadow=True)
        site.finish(*[each for each in site.rows() if each is not None])
        site.batcher.end_sequence(sequence_key(7, ALICE))
        assert len(site.batcher.sequences) == 1
        site.batcher.end_sequence(sequence_key(7, COPIES))
        assert not len(site.batcher.sequences)
        entry = site.enqueue(8, "s")
        assert entry.member is not None
        assert entry.member.sequence.slot is not None


class TestShares:
    @pytest.mark.parametrize("owner", [ALICE, address_owner("10.0.0.1", limited=True)])
    def test_a_client_has_its_share_of_the_slots(self, owner: str) -> None:
        site = SequenceSite(DIRECT, max_batch_size=4, instances=2, client_share=0.5)
        for which in range(1, 5):
            site.enqueue(which, "s", sequence_owner=owner)
        error = site.refused(5, "s", sequence_owner=owner)
        assert isinstance(error, Unavailable)
        assert "4 sequences of this client are open" in error.message
        # They go on, others have theirs, and one that ends makes way.
        site.enqueue(1, sequence_owner=owner)
        site.enqueue(5, "s", sequence_owner=BOB)
        site.enqueue(1, "e", sequence_owner=owner)
        site.enqueue(6, "s", sequence_owner=owner)

    def test_one_is_always_allowed(self) -> None:
        site = SequenceSite(DIRECT, max_batch_size=1, client_share=0.5)
        site.enqueue(1, "s", sequence_owner=ALICE)
        assert isinstance(site.refused(2, "s", sequence_owner=ALICE), Unavailable)

    def test_what_expires_or_is_cancelled_makes_way(self) -> None:
        site = SequenceSite(
            "direct { } max_sequence_idle_microseconds: 1000",
            max_batch_size=1,
            client_share=0.5,
        )
        entry = site.enqueue(1, "s", sequence_owner=ALICE)
        site.batcher.remove_entry(entry)
        entry = site.enqueue(2, "s", sequence_owner=ALICE)
        batch = site.batch()
        assert batch is not None
        site.finish(*batch.entries)
        site.now_ns = 10_000_000
        site.expire()
        site.enqueue(3, "s", sequence_owner=ALICE)

    @pytest.mark.parametrize("owner", ["", address_owner("10.0.0.1", limited=False)])
    def test_nobody_counts_those_of_who_has_no_limit(self, owner: str) -> None:
        site = SequenceSite(DIRECT, max_batch_size=1, client_share=0.5)
        for which in range(1, 5):
            site.enqueue(which, "s", sequence_owner=owner)


@pytest.mark.parametrize(
    "strategy", ["direct {{ }} {}", "oldest {{ max_candidate_sequences: 2 }} {}"]
)
class TestTurns:
    """A client that opens many sequences, and one that opens one; two slots."""

    MANY, ONE = (address_owner(client, limited=False) for client in ("10.0.0.1", "10.0.0.2"))

    def site(self, strategy: str) -> SequenceSite:
        return SequenceSite(strategy.format("max_sequence_idle_microseconds: 1000"))

    def test_one_sequence_waits_for_one_turn_of_the_other_client(self, strategy: str) -> None:
        """Each sequence ends with its second request."""
        site = self.site(strategy)
        for which in range(1, 1001):
            site.enqueue(which, "s", sequence_owner=self.MANY)
        site.enqueue(5000, "s", sequence_owner=self.ONE)
        begun: list[Any] = []
        for _ in range(8):
            batch = site.sent()
            started = [each for each in batch.entries if each.member and each.member.start]
            site.finish(*batch.entries)
            for each in started:
                begun.append((each.request.parameters or {})["sequence_id"])
                site.enqueue(begun[-1], "e", sequence_owner=each.request.sequence_owner)
        assert begun[:6] == [1, 2, 3, 5000, 4, 5]

    def test_it_waits_for_slots_that_are_left_idle(self, strategy: str) -> None:
        """As long as the other client's first sequences have slots, it waits."""
        site = self.site(strategy)
        for which in range(1, 1001):
            site.enqueue(which, "s", sequence_owner=self.MANY)
        wanted = site.enqueue(5000, "s", sequence_owner=self.ONE)
        site.finish(*site.sent().entries)
        site.now_ns += 999 * US
        assert site.expire() == []
        assert site.batch() is None
        site.now_ns += US
        assert site.expire() == []
        assert wanted in site.sent().entries

    def test_those_that_lost_their_slots_come_first(self, strategy: str) -> None:
        """Their clients take turns all the same."""
        site = self.site(strategy)
        for which in (1, 2):
            site.enqueue(which, "s", sequence_owner=self.MANY)
        waiting = [site.enqueue(which, "s", sequence_owner=self.MANY) for which in (3, 4)]
        wanted = site.enqueue(5000, "s", sequence_owner=self.ONE)
        site.remove()
        assert site.failed() == []
        order = []
        for number in range(1, 3):
            site.add(f"i{number}")
            batch = site.sent()
            order += [(each.request.parameters or {})["sequence_id"] for each in batch.entries]
        assert order == [1, 5000, 2, 3]
        assert wanted.member is not None
        assert not site.batcher.sequences.in_backlog(wanted.member.sequence)
        assert waiting[1].member is not None
        assert site.batcher.sequences.in_backlog(waiting[1].member.sequence)


# --- rules of both strategies


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
class TestRetiredInstance:
    """i0 has the slots of sequences 1 and 3, i1 of 2 and 4; 5 and 6 wait."""

    def site(self, strategy: str) -> SequenceSite:
        site = SequenceSite(strategy, instances=2)
        started = [site.enqueue(which, "s") for which in (1, 2, 3, 4)]
        for _ in range(2):
            batch = site.sent()
            site.finish(*batch.entries, free=batch.instance)
        assert [each.member.slot_number for each in started if each.member] == [1, 1, 2, 2]
        for which in (5, 6):
            site.enqueue(which, "s")
        return site

    def test_it_has_no_new_sequences(self, strategy: str) -> None:
        site = self.site(strategy)
        site.batcher.retire_instance("i0")
        ends = [site.enqueue(which, "e") for which in (1, 3)]
        assert site.rows() == ends
        site.finish(*ends)
        assert not site.batcher.has_sequences("i0")
        # Neither from the backlog nor by a START.
        assert site.batcher.sequences.backlog == 2
        site.enqueue(7, "s")
        assert site.batcher.sequences.backlog == 3
        site.remove("i0", lost=False)
        assert site.failed() == []
        site.enqueue(2, "e")
        batch = site.sent()
        assert batch.instance == "i1"
        assert site.batcher.sequences.backlog == 2

    def test_slots_of_another_take_the_backlog(self, strategy: str) -> None:
        site = self.site(strategy)
        for instance in ("i0", "i1", "no instance"):
            site.batcher.retire_instance(instance)
        site.add("i2")
        assert site.batcher.sequences.backlog == 0
        assert site.sent().instance == "i2"

    def test_sequences_there_end_like_others(self, strategy: str) -> None:
        """By a cancellation, and by their idle timeout."""
        site = self.site(strategy)
        site.batcher.retire_instance("i0")
        assert site.batcher.remove_entry(site.enqueue(1))
        assert site.batcher.has_sequences("i0")
        site.now_ns += 10**12
        site.failed()
        assert not site.batcher.has_sequences("i0")
        assert site.batcher.sequences.backlog == 0
        assert {each.instance for each in (site.batch(),) if each} == {"i1"}


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
class TestBoth:
    def test_the_first_request_must_start_the_sequence(self, strategy: str) -> None:
        site = SequenceSite(strategy)
        error = site.refused(7)
        assert isinstance(error, InvalidArgument)
        assert "START flag" in error.message
        site.enqueue(7, "s")
        site.enqueue(7, "e")
        assert "START flag" in site.refused(7).message

    @pytest.mark.parametrize("which", [0, ""])
    def test_a_request_must_be_in_a_sequence(self, strategy: str, which: int | str) -> None:
        assert "correlation ID" in SequenceSite(strategy).refused(which, "s").message

    def test_a_request_must_be_of_batch_size_1(self, strategy: str) -> None:
        assert "batch-size 1" in SequenceSite(strategy).refused(1, "s", size=2).message

    def test_a_long_text_is_no_correlation_id(self, strategy: str) -> None:
        site = SequenceSite(strategy)
        site.enqueue("x" * 128, "s")
        assert isinstance(site.refused("x" * 129, "s"), Unimplemented)

    def test_a_negative_id_is_one_of_64_bits(self, strategy: str) -> None:
        site = SequenceSite(strategy)
        site.enqueue(-1, "s")
        site.enqueue((1 << 64) - 1)

    def test_an_idle_sequence_is_over(self, strategy: str) -> None:
        site = SequenceSite(strategy + " max_sequence_idle_microseconds: 10")
        first = site.enqueue(1, "s")
        site.now_ns = 20 * US
        # It waits: that is not idle.
        assert site.failed() == []
        site.rows()
        site.now_ns = 40 * US
        assert site.failed() == []
        # It is idle from its last response on.
        site.now_ns = 49 * US
        site.finish(first)
        site.now_ns = 58 * US
        site.failed()
        assert site.batcher.wake_at_ns(site.now_ns) == 59 * US
        site.now_ns = 59 * US
        site.failed()
        assert "START flag" in site.refused(1).message
        assert site.batcher.wake_at_ns(site.now_ns) is None

    def test_cancelling_a_request_ends_its_sequence(self, strategy: str) -> None:
        site = SequenceSite(strategy)
        entries = [site.enqueue(1, "s"), site.enqueue(1), site.enqueue(1)]
        other = site.enqueue(2, "s")
        assert site.batcher.remove_entry(entries[1])
        assert site.failed() == [(entries[0], Cancelled), (entries[2], Cancelled)]
        assert site.batcher.pending == 1
        assert other in site.rows()
        assert "START flag" in site.refused(1).message

    def test_a_lost_instance_loses_its_sequences(self, strategy: str) -> None:
        site = SequenceSite(strategy, instances=2)
        first = site.enqueue(1, "s")
        batch = site.sent()
        site.finish(first, free=batch.instance)
        site.remove(batch.instance)
        error = site.refused(1)
        assert isinstance(error, Unavailable)
        assert error.message == (
            f"the state of sequence 1 of model 'm' is lost: {batch.instance} was lost; begin it"
            " again with a request that has the START flag"
        )
        # Once; it may begin anew.
        assert "must specify the START flag" in site.refused(1).message
        site.enqueue(1, "s")

    def test_a_full_queue_refuses(self, strategy: str) -> None:
        site = SequenceSite(strategy, max_pending=2)
        site.enqueue(1, "s")
        site.enqueue(1)
        assert isinstance(site.refused(1), Unavailable)
        assert len(site.batcher.sequences) == 1

    def test_a_deadline_ends_the_sequence(self, strategy: str) -> None:
        site = SequenceSite(strategy)
        first = site.enqueue(1, "s", deadline_ns=10)
        second = site.enqueue(1, deadline_ns=10)
        site.now_ns = 10
        assert site.failed() == [(first, DeadlineExceeded), (second, Unavailable)]
        assert "START flag" in site.refused(1).message

    def test_a_request_that_has_left_the_backlog_does_not_expire(self, strategy: str) -> None:
        site = SequenceSite(strategy, instances=0)
        entry = site.enqueue(1, "s", timeout_us=10)
        site.add("i0")
        site.now_ns = 20 * US
        assert site.failed() == []
        assert site.rows() == [entry]

    def test_an_executing_request_of_a_lost_instance_fails_with_its_sequence(
        self, strategy: str
    ) -> None:
        site = SequenceSite(strategy)
        first = site.enqueue(1, "s")
        site.rows()
        site.remove("i0", lost=False)
        error = site.batcher.retry_error(first, "i0 was lost")
        assert error is not None
        assert "i0 was lost" in error.message
        site.batcher.end_entry(first, site.now_ns)
        site.enqueue(1, "s")

    def test_an_end_that_executes_fails_with_the_cause(self, strategy: str) -> None:
        site = SequenceSite(strategy)
        first = site.enqueue(1, "s")
        site.rows()
        site.finish(first, free="i0")
        # It has left its slot.
        last = site.enqueue(1, "e")
        site.rows()
        site.remove("i0")
        error = site.batcher.retry_error(last, "i0 was lost")
        assert error is not None
        assert "is lost: i0 was lost; begin it again" in error.message


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
class TestServedElsewhere:
    """Clients may have begun their sequences anew at another scheduler."""

    CAUSE = "scheduler 'b' has served the model meanwhile"

    def begun(self, strategy: str) -> SequenceSite:
        """Sequence 1 has begun."""
        site = SequenceSite(strategy)
        first = site.enqueue(1, "s")
        site.finish(*site.sent().entries)
        assert first.state is RequestState.RESPONDED
        return site

    def test_a_sequence_that_has_begun_is_over(self, strategy: str) -> None:
        site = self.begun(strategy)
        site.batcher.end_sequences(self.CAUSE, [])
        assert "must specify the START flag" in site.refused(1).message
        # Its slot is free.
        others = [site.enqueue(which, "s") for which in (2, 3)]
        assert site.rows() == others

    @pytest.mark.parametrize("flags", ["", "e"])
    def test_what_waits_fails_with_the_cause(self, strategy: str, flags: str) -> None:
        site = self.begun(strategy)
        waiting = site.enqueue(1, flags)
        site.batcher.end_sequences(self.CAUSE, [waiting])
        [(failed, error)] = site.expire()
        assert failed is waiting
        assert isinstance(error, Unavailable)
        assert f"is lost: {self.CAUSE}; begin it again" in error.message

    def test_a_start_that_waits_runs(self, strategy: str) -> None:
        site = self.begun(strategy)
        entries = [site.enqueue(1, "s"), site.enqueue(2, "s")]
        site.batcher.end_sequences(self.CAUSE, entries)
        assert site.failed() == []
        assert set(site.rows()) == set(entries)

    def test_a_start_that_executes_does_not_run_again(self, strategy: str) -> None:
        site = SequenceSite(strategy)
        first = site.enqueue(1, "s")
        site.sent()
        site.batcher.end_sequences(self.CAUSE, [first])
        site.remove("i0")
        error = site.batcher.retry_error(first, "i0 was lost")
        assert error is not None
        assert self.CAUSE in error.message


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
class TestSentAgain:
    """The response of a request was lost on its way to the gateway."""

    def run(self, site: SequenceSite, flags: str, number: int, *, resent: bool = False) -> Entry:
        entry = site.enqueue(1, flags, id=number, resent=resent)
        assert entry in site.rows()
        site.finish(entry)
        return entry

    def test_what_was_executed_is_not_executed_again(self, strategy: str) -> None:
        site = SequenceSite(strategy)
        self.run(site, "s", 1 << 30)
        self.run(site, "", (1 << 30) + 7)
        with pytest.raises(Unavailable, match="begin it again with a request that has the START"):
            site.enqueue(1, id=(1 << 30) + 7, resent=True)
        assert isinstance(site.refused(1), InvalidArgument)
        assert site.batcher.pending == 0
        # Its slot is free again.
        self.run(site, "s", (1 << 30) + 9)

    def test_what_was_not_executed_is(self, strategy: str) -> None:
        site = SequenceSite(strategy)
        self.run(site, "s", 1 << 30)
        self.run(site, "", (1 << 30) + 7, resent=True)
        # Of another gateway.
        self.run(site, "", 1 << 20, resent=True)
        self.run(site, "e", 1 << 40, resent=True)

    def test_all_from_its_start_on_are(self, strategy: str) -> None:
        site = SequenceSite(strategy)
        for number, flags in enumerate(("s", "", ""), 1 << 30):
            self.run(site, flags, number)
        again = [
            site.enqueue(1, flags, id=number, resent=True)
            for number, flags in enumerate(("s", "", ""), 1 << 30)
        ]
        for entry in again:
            assert entry in site.rows()
            site.finish(entry)


# --- direct


def test_a_slot_without_a_request_has_a_null_request() -> None:
    head = head_of([("X", "FP32", [1, 3]), ("S", "BYTES", [1, 2])])
    site = SequenceSite(DIRECT + CONTROLS, max_batch_size=4)
    for which in (1, 2, 3):
        site.enqueue(which, "s", head=head)
    rows = site.rows()
    site.finish(*(row for row in rows if row))
    third = site.enqueue(3, head=head)
    batch = site.sent()
    assert (batch.size, batch.nulls) == (1, 2)
    null, _, last = batch.entries
    assert last is third
    message = kserve_pb2.ModelInferRequest.FromString(last.request.head)
    described = [(each.name, each.datatype, tuple(each.shape)) for each in message.inputs]
    assert described[2:] == [
        ("START", "INT32", (1, 1)),
        ("END", "FP32", (1, 1)),
        ("READY", "BOOL", (1, 1)),
        ("CORRID", "UINT32", (1, 1)),
    ]
    assert last.request.payloads == [
        *(b"\0\0\0\0", b"\0\0\x80\xbf", b"\1", b"\3\0\0\0"),
    ]
    assert null.request.head == last.request.head
    assert null.request.payloads == [
        *(bytes(12), bytes(8)),
        *(b"\0\0\0\0", b"\0\0\x80\xbf", b"\0", b"\0\0\0\0"),
    ]


def test_rows_end_with_the_last_request() -> None:
    site = SequenceSite(DIRECT, max_batch_size=4)
    for which in (1, 2, 3):
        site.enqueue(which, "s")
    rows = site.rows()
    site.finish(*(row for row in rows if row))
    second = site.enqueue(2)
    assert site.rows() == [None, second]


def test_minimum_slot_utilization_delays_a_batch() -> None:
    strategy = "direct { minimum_slot_utilization: 0.75 max_queue_delay_microseconds: 50 }"
    site = SequenceSite(strategy, max_batch_size=4)
    first = site.enqueue(1, "s")
    site.now_ns = 10 * US
    second = site.enqueue(2, "s")
    assert site.batch() is None
    assert site.batcher.wake_at_ns(site.now_ns) == 50 * US
    site.now_ns = 50 * US
    assert site.rows() == [first, second]
    site.finish(first, second)
    entries = [site.enqueue(1), site.enqueue(2), site.enqueue(3, "s")]
    assert site.rows() == entries


def test_a_correlation_id_must_be_of_the_control_tensors_kind() -> None:
    site = SequenceSite(DIRECT + CONTROLS)
    assert site.refused("text", "s").message.startswith(
        "[request id: <id_unknown>] sequence batching control 'CORRID' data-type is 'BYTES', but "
    )
    assert "non-empty correlation ID" in site.refused("", "s").message
    text = CONTROLS.replace("TYPE_UINT32", "TYPE_STRING")
    site = SequenceSite(DIRECT + text)
    assert site.refused(1, "s").message.endswith("is 'UINT64', but model 'm' expects 'BYTES'")
    assert "non-zero or non-empty" in site.refused(0, "s").message
    entry = site.enqueue("é", "s")
    assert entry.request.payloads[-1] == b"\2\0\0\0" + "é".encode()


# --- oldest


def test_a_delay_waits_for_other_sequences() -> None:
    settings = "max_queue_delay_microseconds: 30 preferred_batch_size: 2"
    site = SequenceSite(f"oldest {{ max_candidate_sequences: 4 {settings} }}", max_batch_size=4)
    first = site.enqueue(1, "s")
    assert site.batch() is None
    assert site.batcher.wake_at_ns(0) == 30 * US
    second = site.enqueue(2, "s")
    assert site.rows() == [first, second]


def test_a_start_never_overtakes_the_end_in_its_slot() -> None:
    site = SequenceSite(OLDEST, max_batch_size=4)
    begun = [site.enqueue(1, "s"), site.enqueue(2, "s")]
    assert site.rows() == begun
    waiting = site.enqueue(3, "s", shape="long")
    site.finish(*begun)
    goes_on = site.enqueue(2, shape="long")
    ends = site.enqueue(1, "e", shape="short")
    assert site.rows() == [goes_on]
    site.finish(goes_on)
    assert site.rows() == [ends]
    site.finish(ends)
    assert site.rows() == [waiting]


def test_requests_expire_in_the_backlog_with_their_sequence() -> None:
    site = SequenceSite("oldest { max_candidate_sequences: 1 }")
    site.enqueue(1, "s")
    entry = site.enqueue(2, "s", timeout_us=10)
    behind = site.enqueue(2)
    site.now_ns = 10 * US
    assert site.failed() == [(entry, Unavailable), (behind, Unavailable)]
    assert site.batcher.sequences.backlog == 0


# --- a START behind an attempt of the same id


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
class TestBegunAnew:
    def begun(self, strategy: str, **options: Any) -> SequenceSite:
        """Sequence 1 has state."""
        site = SequenceSite(strategy, **options)
        first = site.enqueue(1, "s")
        batch = site.sent()
        site.finish(first, free=batch.instance)
        return site

    def test_a_cancelled_request_fails_its_own_attempt_alone(self, strategy: str) -> None:
        site = self.begun(strategy)
        cancelled, behind = site.enqueue(1), site.enqueue(1)
        again, end = site.enqueue(1, "s"), site.enqueue(1, "e")
        assert site.batcher.remove_entry(cancelled)
        assert site.failed() == [(behind, Cancelled)]
        for entry in (again, end):
            assert site.rows() == [entry]
            site.finish(entry)
        assert (len(site.batcher.sequences), site.batcher.pending) == (0, 0)

    def test_it_keeps_its_place_in_the_backlog(self, strategy: str) -> None:
        site = SequenceSite(strategy, instances=0)
        for which in (1, 2):
            site.enqueue(which, "s")
        cancelled, again = site.enqueue(3, "s"), site.enqueue(3, "s")
        site.enqueue(4, "s")
        assert site.batcher.remove_entry(cancelled)
        assert site.failed() == []
        site.add("i0")
        site.add("i1")
        batches = [site.batch(), site.batch()]
        assert again in [entry for batch in batches if batch for entry in batch.entries]
        # The first slot of i1: not ahead of 2, nor behind 4.
        assert again.member is not None
        assert again.member.slot_number == 1
        assert [batch.instance for batch in batches if batch and again in batch.entries] == ["i1"]

    def test_an_older_attempt_that_has_ended_concerns_nobody(self, strategy: str) -> None:
        """The id's present sequence remains open."""
        site = SequenceSite(strategy, instances=0)
        cancelled = site.enqueue(1, "s")
        again, end = site.enqueue(1, "s"), site.enqueue(1, "e")
        present = site.enqueue(1, "s")
        assert site.batcher.remove_entry(cancelled)
        assert site.failed() == []
        assert len(site.batcher.sequences) == 1
        site.add("i0")
        batch = site.sent()
        assert {again, present} <= set(batch.entries)
        site.finish(again, present)
        assert end in site.rows()
