"""The version that a request names, and readiness."""

import pytest

from nereid.core.errors import InvalidArgument, NotFound, Unavailable
from nereid.pb import model_config_pb2
from nereid_scheduler.core.models.desired_models import DesiredModels, Reason
from nereid_scheduler.placement.models.catalogue import (
    Catalogue,
    FoundName,
    ServedModel,
    ServedVersion,
    parse_version,
)
from tests.support.scheduler.world import served_model, served_version


def model(name: str, **states: str) -> ServedModel:
    """Versions v1, v2, … as loading, ready, waiting, failed or unknown."""
    return served_model(
        name, *(served_version(name, int(key[1:]), state=state) for key, state in states.items())
    )


def found(catalogue: Catalogue, name: str, version: str = "") -> int:
    return catalogue.find(name, version).number


def test_a_request_without_a_version_gets_the_latest_ready_one() -> None:
    catalogue = Catalogue([model("m", v1="ready", v2="waiting", v3="loading", v4="failed")])
    assert found(catalogue, "m") == 2
    assert found(catalogue, "m", "1") == 1


def test_a_version_that_is_missing_or_not_ready_is_refused_in_tritons_words() -> None:
    catalogue = Catalogue([model("m", v1="failed", v2="loading"), model("empty")])
    for name, version, error, text in (
        ("nope", "", NotFound, "Request for unknown model: 'nope' is not found"),
        ("nope", "1", NotFound, "Request for unknown model: 'nope' is not found"),
        ("m", "", NotFound, "Request for unknown model: 'm' has no available versions"),
        ("empty", "", NotFound, "Request for unknown model: 'empty' has no available versions"),
        ("m", "7", NotFound, "Request for unknown model: 'm' version 7 is not found"),
        ("m", "1", Unavailable, "Request for unknown model: 'm' version 1 is not at ready state"),
    ):
        with pytest.raises(error) as error_info:
            catalogue.find(name, version)
        assert error_info.value.message == text


@pytest.mark.parametrize(
    ("name", "version", "loading"),
    [
        ("new", "", True),
        ("new", "2", True),
        ("new", "1", False),
        ("new", "9", False),
        ("old", "", False),
        ("old", "2", True),
        ("nope", "", False),
    ],
)
def test_a_version_is_loading_until_its_first_load_is_over(
    name: str, version: str, loading: bool
) -> None:
    catalogue = Catalogue(
        [model("new", v1="failed", v2="loading"), model("old", v1="ready", v2="loading")]
    )
    assert catalogue.is_loading(name, version) is loading


@pytest.mark.parametrize(
    ("state", "strict", "settled"),
    [
        ("ready", True, True),
        ("waiting", False, True),
        ("failed", False, True),
        ("loading", False, False),
    ],
)
def test_readiness(state: str, strict: bool, settled: bool) -> None:
    catalogue = Catalogue([model("good", v1="ready"), model("m", v1="ready", v2=state)])
    assert catalogue.all_serving() is strict
    assert catalogue.all_settled() is settled
    assert catalogue.is_ready("m", "2") is strict
    assert not catalogue.is_ready("m", "3")


def test_a_model_without_versions_is_not_ready() -> None:
    assert Catalogue([]).all_serving()
    assert not Catalogue([model("m")]).all_serving()


def test_the_index_names_states_and_reasons() -> None:
    refused = ServedModel("bare", reason="no versions")
    catalogue = Catalogue([refused, model("m", v1="failed", v2="unknown", v3="ready")])
    entries = [
        (e.name, e.version, e.state, e.reason)
        for e in catalogue.index(
            {"bare": FoundName("bare"), "m": FoundName("m")}, ready_only=False
        ).models
    ]
    assert entries == [
        ("bare", "", "UNAVAILABLE", "no versions"),
        ("m", "1", "UNAVAILABLE", "because"),
        ("m", "2", "UNKNOWN", ""),
        ("m", "3", "READY", ""),
    ]
    (twice,) = catalogue.index(
        {"m": FoundName("m", "in two repositories")}, ready_only=False
    ).models
    assert (twice.version, twice.state, twice.reason) == ("", "UNAVAILABLE", "in two repositories")
    assert [e.version for e in catalogue.index({}, ready_only=True).models] == ["3"]


def test_the_index_says_why_a_model_without_versions_was_refused() -> None:
    desired = DesiredModels()
    desired.refusals |= {"m": "bad", "unread": "bad"}
    catalogue = Catalogue([model("m", v1="ready")], desired)
    names = {name: FoundName(name) for name in ("m", "unread", "untouched")}
    entries = [(e.name, e.state, e.reason) for e in catalogue.index(names, ready_only=False).models]
    assert entries == [("m", "READY", ""), ("unread", "UNAVAILABLE", "bad"), ("untouched", "", "")]
    assert catalogue.all_serving()


def test_the_index_says_why_a_repository_could_not_be_read() -> None:
    desired = DesiredModels()
    desired.refusals |= {"refused": "bad"}
    catalogue = Catalogue([model("m", v1="ready")], desired)
    names = {name: FoundName(name, problem="away") for name in ("m", "refused", "untouched")}
    entries = [(e.name, e.state, e.reason) for e in catalogue.index(names, ready_only=False).models]
    assert entries == [
        ("m", "READY", ""),
        ("refused", "UNAVAILABLE", "bad"),
        ("untouched", "UNAVAILABLE", "away"),
    ]


def test_executors_check_the_files_of_object_stores() -> None:
    draft = model_config_pb2.ModelConfig()
    assert ServedVersion("m", 1, "s3://b/m/1", draft, file_digest=b"d").stored_digest == b"d"
    assert ServedVersion("m", 1, "/models/m/1", draft, file_digest=b"d").stored_digest == b""


@pytest.mark.parametrize(
    ("text", "number"),
    [("", -1), ("1", 1), (" \t01", 1), ("+3", 3), ("1z", 1), ("0", 0), ("-0", 0)],
)
def test_versions_are_parsed_as_in_triton(text: str, number: int) -> None:
    assert parse_version(text) == number


@pytest.mark.parametrize("text", ["x", "-1", "9" * 20, "9" * 5000, "-" + "9" * 20, "\u0663", "+"])
def test_an_invalid_version_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="version should be an integral value > 0"):
        parse_version(text)


def test_a_model_that_is_to_be_found_is_shown_as_loading_and_its_requests_wait() -> None:
    desired = DesiredModels()
    desired.add("space::m", Reason.TAKEN_OVER, awaited_as="m")
    catalogue = Catalogue([model("other", v1="ready")], desired)
    assert catalogue.is_loading("m", "1")
    assert not catalogue.is_loading("n", "")
    assert not catalogue.all_settled()
    assert not catalogue.all_serving()
    shown = {(each.name, each.state) for each in catalogue.index({}, ready_only=False).models}
    assert shown == {("m", "LOADING"), ("other", "READY")}
    assert [each.name for each in catalogue.index({}, ready_only=True).models] == ["other"]
