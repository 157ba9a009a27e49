"""Places in sequences that requests have and responses state."""

import pytest

from nereid.core.errors import InvalidArgument
from nereid.core.wire.codecs import write_parameters
from nereid.core.wire.messages import Parameter
from nereid.pb import kserve_pb2
from nereid_scheduler.versions.ensembles.graphs.sequence_place import (
    SequencePlace,
    StatedPlace,
    place_of,
    stated_place,
)


def stated(parameters: dict[str, Parameter]) -> StatedPlace | None:
    message = kserve_pb2.ModelInferResponse()
    write_parameters(parameters, message.parameters)
    return stated_place(message.parameters)


def test_a_request_without_parameters_is_in_no_sequence() -> None:
    assert place_of(None) == place_of({"mine": 1}) == SequencePlace(0, start=False, end=False)


def test_parameters_say_where_a_request_is() -> None:
    parameters: dict[str, Parameter] = {"sequence_id": "x", "sequence_end": True}
    place = place_of(parameters)
    assert place == SequencePlace("x", start=False, end=True)
    assert place_of(place.parameters()) == place


def test_a_response_may_state_nothing() -> None:
    assert stated({"mine": 1}) is None


def test_what_a_response_does_not_state() -> None:
    """The id is its request's, a flag is false."""
    own = SequencePlace(5, start=True, end=True)
    assert stated({"sequence_start": True}) == StatedPlace(None, start=True, end=False)
    assert StatedPlace(None, start=True, end=False).behind(own) == (5, True, False)
    assert stated({"sequence_id": "x"}) == StatedPlace("x", start=False, end=False)
    assert StatedPlace("x", start=False, end=False).behind(own) == ("x", False, False)
    assert StatedPlace(0, start=False, end=False).behind(own) == (0, False, False)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"sequence_id": True},
            (
                "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or"
                " TRITONSERVER_PARAMETER_STRING"
            ),
        ),
        (
            {"sequence_start": 1},
            "expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL",
        ),
        (
            {"sequence_end": "true"},
            "expect parameter 'sequence_end' to be TRITONSERVER_PARAMETER_BOOL",
        ),
    ],
    ids=["id", "start", "end"],
)
def test_other_types_are_refused(parameters: dict[str, Parameter], text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        stated(parameters)
    assert caught.value.message == text
