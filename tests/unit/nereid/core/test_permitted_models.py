"""What a gateway writes into a load request, and what a scheduler reads there."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid.core.permitted_models import (
    PERMITTED_MODELS,
    NamePatterns,
    PermittedModels,
    permitted_models,
)
from nereid.pb import kserve_pb2

_MINE = PermittedModels("alice", NamePatterns(("mine*", 'it\'s "x"')))


def request_of(text: str) -> kserve_pb2.RepositoryModelLoadRequest:
    request = kserve_pb2.RepositoryModelLoadRequest(model_name="m")
    request.parameters[PERMITTED_MODELS].string_param = text
    return request


def test_what_is_added_is_read() -> None:
    request = kserve_pb2.RepositoryModelLoadRequest(model_name="m")
    request.parameters["config"].string_param = "{}"
    read = kserve_pb2.RepositoryModelLoadRequest.FromString(
        request.SerializeToString() + _MINE.entry()
    )
    assert permitted_models(read) == _MINE
    assert (read.model_name, read.parameters["config"].string_param) == ("m", "{}")
    assert permitted_models(request) is None


def test_the_gateways_entry_counts_and_not_the_clients() -> None:
    client = request_of('{"principal": "x", "models": ["*"]}').SerializeToString()
    read = kserve_pb2.RepositoryModelLoadRequest.FromString(client + _MINE.entry())
    assert permitted_models(read) == _MINE


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"principal": "x", "models": 1}', "[" * 100_000, '"x"']
)
def test_what_no_gateway_has_written(text: str) -> None:
    with pytest.raises(InvalidArgument, match="invalid load parameter"):
        permitted_models(request_of(text))


@pytest.mark.parametrize(
    ("patterns", "name", "matches"),
    [
        (("mine*",), "mine_a", True),
        (("mine*",), "not_mine", False),
        (("a", "b?"), "bc", True),
        ((), "a", False),
        (("*",), "x" * 1025, False),
    ],
)
def test_names(patterns: tuple[str, ...], name: str, matches: bool) -> None:
    assert NamePatterns(patterns).match(name) is matches
