"""Who is a live member, by what peers send and when their streams end."""

import pytest

from nereid_scheduler.control.shards.members.membership import (
    Change,
    Membership,
    NameInUseError,
    Peer,
)


def _started(name: str = "a") -> Membership:
    membership = Membership(name, 1)
    membership.start()
    return membership


def test_a_scheduler_owns_nothing_before_it_has_started_and_after_it_leaves() -> None:
    membership = Membership("a", 1)
    assert membership.members == set()
    assert not membership.is_member
    assert membership.start() == Change(joined=frozenset({"a"}))
    assert membership.members == {"a"}
    assert membership.is_member
    assert membership.epoch == 1
    assert membership.leave() == Change(left=frozenset({"a"}))
    assert membership.members == set()
    assert not membership.is_member


def test_a_peer_is_a_member_from_its_start_to_the_end_of_its_last_stream() -> None:
    membership = _started()
    assert membership.on_state("dialled", Peer("b", 2)) == Change()
    assert membership.starting
    assert membership.members == {"a"}
    change = membership.on_state("dialled", Peer("b", 2, epoch=1))
    assert change == Change(joined=frozenset({"b"}), peers=True)
    assert not membership.starting
    membership.on_state("accepted", Peer("b", 2, epoch=1))
    assert membership.on_stream_end("dialled") == Change()
    assert membership.members == {"a", "b"}
    change = membership.on_stream_end("accepted")
    assert change == Change(left=frozenset({"b"}), peers=True)
    assert membership.on_stream_end("accepted") == Change()
    assert membership.members == {"a"}


@pytest.mark.parametrize("ends", ["first", "second"])
def test_of_several_streams_the_state_that_was_sent_last_counts(ends: str) -> None:
    """A new stream brings what was said when it was dialled, however late that is read."""
    membership = _started()
    membership.on_state("first", Peer("b", 2, epoch=3, models=frozenset("m"), number=5))
    assert membership.on_state("second", Peer("b", 2, number=1)) == Change()
    assert membership.holder("m") == "b"
    # The state is not lost with the stream that brought it.
    assert membership.on_stream_end(ends) == Change()
    assert membership.members == {"a", "b"}
    assert membership.on_state("second", Peer("b", 2, epoch=3, number=6)).peers
    # Another process of this name has another count.
    assert membership.on_state("third", Peer("b", 3, number=1)).left == {"b"}


def test_a_peer_that_leaves_owns_nothing_though_its_stream_is_open() -> None:
    membership = _started()
    membership.on_state(1, Peer("b", 2, epoch=1, models=frozenset({"m"})))
    change = membership.on_state(1, Peer("b", 2, epoch=1, leaving=True))
    assert change.left == {"b"}
    assert membership.members == {"a"}
    assert set(membership.peers) == {"b"}
    assert membership.holder("m") is None


def test_epochs_exceed_all_that_were_seen_with_every_change_of_the_members() -> None:
    membership = Membership("a", 1)
    membership.on_state(1, Peer("b", 2, epoch=7))
    # On its own account and since its members have changed with that.
    membership.start()
    started = membership.epoch
    assert started > 7
    membership.on_state(1, Peer("b", 2, epoch=40, models=frozenset({"m"})))
    assert membership.epoch == started
    membership.on_stream_end(1)
    assert membership.epoch == 41
    membership.on_state(2, Peer("b", 2, epoch=3))
    assert membership.epoch == 42


def test_a_restarted_peer_counts_by_its_newest_stream() -> None:
    membership = _started()
    membership.on_state(1, Peer("b", 2, epoch=4, models=frozenset({"m"})))
    change = membership.on_state(2, Peer("b", 3))
    assert change.left == {"b"}
    assert membership.take_lost_models() == {"m"}
    assert membership.on_state(2, Peer("b", 3, epoch=1)).joined == {"b"}
    assert membership.on_stream_end(1) == Change()


def test_a_scheduler_that_reaches_itself_is_no_peer() -> None:
    membership = _started()
    assert membership.on_state(1, Peer("a", 1, epoch=1)) == Change()
    assert not membership.is_connected(1)
    assert membership.peers == {}


def test_another_process_of_the_same_name_is_refused() -> None:
    membership = _started()
    with pytest.raises(NameInUseError, match="a"):
        membership.on_state(1, Peer("a", 2, epoch=1))
    assert membership.members == {"a"}
    assert membership.on_stream_end(1) == Change()


def test_of_members_that_have_one_model_the_one_with_the_larger_epoch_holds_it() -> None:
    membership = _started()
    model = frozenset({"m"})
    membership.on_state(1, Peer("c", 3, epoch=5, models=model))
    membership.on_state(2, Peer("b", 2, epoch=6, models=model))
    assert membership.holder("m") == "b"
    change = membership.on_state(1, Peer("c", 3, epoch=6, models=model))
    assert membership.holder("m") == "c"
    assert not change.peers
    assert membership.on_state(1, Peer("c", 3, epoch=6)).peers
    assert membership.holder("m") == "b"
    assert membership.holder("n") is None


def test_models_of_lost_members_are_given_out_once() -> None:
    membership = _started()
    membership.on_state(1, Peer("b", 2, epoch=1, models=frozenset({"m"})))
    membership.on_state(2, Peer("c", 3, epoch=1, models=frozenset({"n"})))
    membership.on_stream_end(1)
    membership.on_stream_end(2)
    assert membership.lost_models == {"b": {"m"}, "c": {"n"}}
    assert membership.take_lost_models() == {"m", "n"}
    assert membership.lost_models == {}
    assert membership.take_lost_models() == set()


def test_a_member_that_is_lost_twice_has_lost_what_it_had_at_first() -> None:
    membership = _started()
    membership.on_state(1, Peer("b", 2, epoch=1, models=frozenset({"m"})))
    membership.on_stream_end(1)
    membership.on_state(2, Peer("b", 3, epoch=4))
    membership.on_stream_end(2)
    assert membership.take_lost_models() == {"m"}


def test_a_peer_that_has_taken_the_models_over_says_so_and_counts_once() -> None:
    one, other = Membership("a", 1), Membership("b", 2)
    for each in (one, other):
        each.start()
    other.on_state(1, Peer("a", 1, epoch=1))
    other.on_stream_end(1)
    other.record_takeovers({"a"})
    assert other.takeovers == ((1, other.epoch),)

    def state() -> Peer:
        return Peer("b", 2, epoch=other.epoch, takeovers=other.takeovers)

    assert one.on_state(1, state()).replaced
    assert not one.on_state(1, state()).replaced
    other.on_state(2, Peer("a", 1, epoch=2))
    assert not one.on_state(1, state()).replaced
    other.on_stream_end(2)
    other.record_takeovers({"a"})
    assert one.on_state(1, state()).replaced
    # Another process of this name has had its models all the time.
    assert not Membership("a", 3).on_state(1, state()).replaced


def test_streams_are_found_by_the_name_of_the_peer_at_the_other_end() -> None:
    membership = _started()
    membership.on_state(1, Peer("b", 2))
    assert membership.is_connected(1)
    assert membership.stream_of("b", [7, 1]) == 1
    assert membership.stream_of("c", [7, 1]) is None


def test_who_has_as_many_executors_and_links_as_each_member_is_equipped() -> None:
    membership = Membership("a", 1)
    assert membership.is_equipped(0, 0)
    membership.on_state(1, Peer("b", 2, epoch=1, executors=2, links=3))
    membership.on_state(2, Peer("c", 3, executors=5, links=5))
    assert membership.is_equipped(2, 3)
    assert not membership.is_equipped(1, 3)
    assert not membership.is_equipped(2, 2)
