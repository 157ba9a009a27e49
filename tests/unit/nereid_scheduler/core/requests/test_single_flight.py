"""Single flight: who leads, who follows."""

from hypothesis import given
from hypothesis import strategies as st

from nereid_scheduler.core.requests.single_flight import Flight, SingleFlight


def test_the_first_leads_and_the_others_follow() -> None:
    flights = SingleFlight[str]()
    flight = flights.join(1, "a")
    assert flights.join(1, "b") is flight
    assert flights.join(2, "c") is not flight
    assert flight.leader == "a"
    assert flights.land(flight) == ["b"]
    assert flights.join(1, "d") is not flight


def test_the_follower_that_waited_longest_leads_next() -> None:
    flights = SingleFlight[str]()
    flight = flights.join(1, "a")
    flights.join(1, "b")
    flights.join(1, "c")
    assert flights.leave(flight, "a") == "b"
    assert flights.leave(flight, "c") is None
    assert flights.leave(flight, "b") is None
    assert len(flights) == 0


def test_a_flight_of_its_own_does_not_end_another() -> None:
    flights = SingleFlight[str]()
    flights.join(1, "a")
    own = Flight(1, "b")
    assert flights.land(own) == []
    assert len(flights) == 1


@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "land"]), st.integers(0, 5))))
def test_all_members_are_in_one_flight(steps: list[tuple[str, int]]) -> None:
    flights = SingleFlight[int]()
    flight: Flight[int] | None = None
    members: list[int] = []
    for act, member in steps:
        if act == "join" and member not in members:
            flight = flights.join("x", member)
            members.append(member)
        elif act == "leave" and member in members:
            assert flight is not None
            led = members[0] == member
            members.remove(member)
            assert flights.leave(flight, member) == (members[0] if led and members else None)
        elif act == "land" and members:
            assert flight is not None
            assert flights.land(flight) == members[1:]
            members = []
        assert len(flights) == bool(members)
        if members:
            assert flight is not None
            assert [flight.leader, *flight.followers] == members
