"""Implicit state on the move, of models that execute requests: what is theirs alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid.backends import BatchUpdate, ModelLostError
from nereid.core.errors import Unavailable
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.open_batches import OpenBatches
from tests.support.executor.running_sums import (
    DEFERRED,
    RequestSite,
    asked,
    config_of,
    malformed,
    member,
    not_here,
    not_restored,
    outcomes,
    restored,
    state,
    states_of,
    value_of,
)
from tests.support.executor.scripted_model import Stream, begin, collect


@pytest.fixture
def site() -> Iterator[RequestSite]:
    made = RequestSite()
    yield made
    made.close()


def test_another_scheduler_finds_no_sequences(site: RequestSite) -> None:
    site.run(member(1, 1, "start"))
    site.runner.begin_tenure(None)
    assert outcomes(site.run(member(2, 1))) == [not_here()]
    assert outcomes(site.run(member(2, 1, "start"))) == [2]


def test_states_come_with_responses(site: RequestSite) -> None:
    executed = site.run(asked(1, 1, "start"), member(2, 2, "start"), asked(3, 3, "start"))
    assert states_of(executed) == [(1, state(1)), (3, state(3))]
    # An error leaves the state, which is known therefore.
    executed = site.run(asked(-1, 1), malformed(asked(2, 2)))
    assert outcomes(executed) == ["negative", "a request has 1 inputs but 0 payloads"]
    assert states_of(executed) == [(1, state(1))]


def test_requests_of_several_sequences_are_replayed_together(site: RequestSite) -> None:
    first = restored(member(4, 7), state(1), member(2, 0), member(3, 0))
    second = restored(member(4, 8), b"", member(1, 0, "start"))
    site.run(first, second, member(9, 9, "start"))
    batches = [[value_of(each) for each in batch] for batch in site.model.begun.values()]
    assert batches == [[2, 1], [3], [4, 4, 9]]


def test_a_malformed_request_in_a_replay_loses_the_state(site: RequestSite) -> None:
    request = restored(member(1, 1), state(1), malformed(member(1, 0)), member(1, 0))
    assert outcomes(site.run(request)) == [not_restored()]


def test_a_replay_that_the_model_cannot_begin_loses_the_state(site: RequestSite) -> None:
    site.model.refusal = Unavailable("too much")
    assert outcomes(site.run(restored(member(1, 1), state(1), member(1, 0)))) == [not_restored()]


def test_a_model_that_is_lost_in_a_replay_has_not_seen_the_batch(site: RequestSite) -> None:
    site.model.seen = 1
    site.model.updates.append(ModelLostError("it fell"))
    stream = Stream(pb.Batch(id=1, members=[restored(member(1), state(1), member(1, 0))]))
    with pytest.raises(ModelLostError):
        site.runner.serve(stream, bool)
    assert stream.sent == []
    assert not site.runner.received.busy


def test_states_are_given_away_when_all_responses_have_come(site: RequestSite) -> None:
    begin(site.runner, pb.Batch(id=1, members=[member(DEFERRED, 1, "start")]))
    (deferred,) = collect(site.runner, site.model)
    assert deferred.partial
    # Meanwhile others may come from elsewhere.
    request = restored(asked(1, 2), state(1), member(1, 0))
    assert begin(site.runner, pb.Batch(id=2, members=[request])) == []
    (executed,) = collect(site.runner, site.model)
    assert outcomes(executed) == [3]
    assert begin(site.runner, pb.Batch(id=3, exported_slots=[2, 1])) == []
    response = site.model.respond(0, site.model.begun[1][0])
    update = BatchUpdate(1, [response], ready_for_next=False)
    last, export = collect(site.runner, site.model, update)
    assert outcomes(last) == [DEFERRED]
    assert (export.id, states_of(export)) == (3, [(2, state(3)), (1, state(DEFERRED))])


@pytest.mark.parametrize(
    ("more", "decoupled", "moves"),
    [("", False, True), ("", True, False), ("iterative_sequence: true", False, False)],
)
def test_states_that_any_response_may_change_do_not_move(
    more: str, *, decoupled: bool, moves: bool
) -> None:
    config = config_of(more)
    config.model_transaction_policy.decoupled = decoupled
    batches = OpenBatches(config, Path(), "m_0")
    assert batches.has_states == moves
