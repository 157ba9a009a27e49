"""When a change of the members is acted on."""

import pytest

from nereid.config.recovery import RecoveryTimes
from nereid_scheduler.control.shards.members.member_changes import Due, MemberChanges
from nereid_scheduler.control.shards.members.membership import Change

# start_wait 2 s, settle 0.5 s, a beat each 0.8 s, and 2 s after which it stood still.
TIMES = RecoveryTimes(7.0, 30.0)
JOINED = Change(joined=frozenset("b"), peers=True)
LEFT = Change(left=frozenset("b"), peers=True)
PEERS = Change(peers=True)
REPLACED = Change(replaced=True)


def changes_at(now_s: float) -> MemberChanges:
    changes = MemberChanges(TIMES, now_s)
    changes.start()
    return changes


@pytest.mark.parametrize("change", [JOINED, LEFT, PEERS, Change()])
def test_nothing_is_due_before_the_start(change: Change) -> None:
    changes = MemberChanges(TIMES, 0.0)
    assert changes.on_change(change, 0.0, lambda: False) is Due.NOTHING
    assert changes.move_due_at_s is None


@pytest.mark.parametrize(
    ("change", "regrouped", "due", "move_due_at_s"),
    [
        (JOINED, False, Due.NOTHING, 10.5),
        (LEFT, False, Due.TAKE_OVER, None),
        (REPLACED, False, Due.GIVE_UP, 10.5),
        (JOINED._replace(replaced=True), False, Due.GIVE_UP, 10.5),
        (PEERS, True, Due.REGROUP, None),
        (PEERS, False, Due.ANNOUNCE, None),
        (Change(), False, Due.NOTHING, None),
    ],
    ids=["joined", "left", "replaced", "joined and replaced", "regrouped", "peers", "nothing"],
)
def test_what_a_change_asks_for(
    change: Change, regrouped: bool, due: Due, move_due_at_s: float | None
) -> None:
    changes = changes_at(10.0)
    assert changes.on_change(change, 10.0, lambda: regrouped) is due
    assert changes.move_due_at_s == move_due_at_s


def test_members_that_come_one_after_the_other_are_given_models_once() -> None:
    changes = changes_at(0.0)
    changes.on_change(JOINED, 0.0, lambda: False)
    changes.on_change(JOINED, 0.3, lambda: False)
    assert changes.move_due_at_s == pytest.approx(0.8)
    # What they have meanwhile puts nothing off.
    changes.on_change(PEERS, 0.4, lambda: False)
    assert changes.move_due_at_s == pytest.approx(0.8)
    assert changes.on_settled() is Due.MOVE
    assert changes.move_due_at_s is None


def test_a_loss_does_what_was_put_off() -> None:
    changes = changes_at(0.0)
    changes.on_change(JOINED, 0.0, lambda: False)
    assert changes.on_change(LEFT, 0.1, lambda: False) is Due.TAKE_OVER
    assert changes.move_due_at_s is None


@pytest.mark.parametrize("beats_first", [True, False])
def test_a_scheduler_that_stood_still_waits_for_its_peers(beats_first: bool) -> None:
    changes = changes_at(0.0)
    assert changes.on_beat(0.5) == pytest.approx(1.3)
    assert not changes.stood_still(2.5)
    if beats_first:
        assert changes.on_beat(5.0) == pytest.approx(5.8)
    assert changes.on_change(LEFT, 5.1, lambda: False) is Due.GIVE_UP
    assert changes.move_due_at_s == pytest.approx(7.1)
    # A while after it goes on it is as all others.
    changes.on_beat(5.2)
    changes.on_beat(6.1)
    assert changes.on_change(LEFT, 6.2, lambda: False) is Due.TAKE_OVER
