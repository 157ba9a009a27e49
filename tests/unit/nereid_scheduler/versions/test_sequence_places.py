"""Places of requests in their sequences."""

from __future__ import annotations

from typing import Any

from nereid.core.sequence_owners import principal_owner
from nereid.core.wire.messages import InferRequest
from nereid_scheduler.versions.sequence_places import SequencePlaces

START: dict[str, Any] = {"sequence_start": True}
END: dict[str, Any] = {"sequence_end": True}


def request(correlation_id: int | str = 7, owner: str = "", **flags: Any) -> InferRequest:
    parameters = {"sequence_id": correlation_id, **flags}
    return InferRequest(1, b"", [], "", parameters, sequence_owner=owner)


def test_requests_are_counted_from_start_to_end() -> None:
    places = SequencePlaces()
    assert places.count(InferRequest(1, b"", [])) is None
    assert places.count(request()) is None
    assert not places
    counted = [places.count(request(**flags)) for flags in (START, {}, END)]
    first = counted[0]
    assert first is not None
    assert counted == [(first.start, 1), (first.start, 2), (first.start, 3)]
    assert not places
    assert places.count(request(**END)) is None


def test_each_start_begins_another_sequence() -> None:
    places = SequencePlaces()
    found = [
        places.count(each)
        for each in (
            request(**START),
            request(**START),
            request("7", **START),
            request(7, principal_owner("p"), **START),
            request(**START, **END),
        )
    ]
    assert [place and place.number for place in found] == [1] * 5
    assert len({place and place.start for place in found}) == 5
    assert len(places) == 2


def test_the_oldest_sequence_is_forgotten() -> None:
    places = SequencePlaces(max_sequences=2)
    for correlation_id in (1, 2, 1, 3):
        places.count(request(correlation_id, **START))
    assert places.count(request(2)) is None
    for correlation_id in (1, 3):
        place = places.count(request(correlation_id))
        assert place is not None
        assert place.number == 2
