"""The version that a request names, and readiness."""

import pytest

from nereid.core.errors import InvalidArgument, NotFound, Unavailable
from nereid.pb import model_config_pb2
from nereid_scheduler.core.models.desired_models import DesiredModels, Reason
from nereid_scheduler.placement.models.catalogue import (
    Catalogue,
    Loading,
    Missing,
    OnDemand,
    Ready,
    ServedModel,
    ServedVersion,
    parse_version,
)
from tests.support.scheduler.world import found as repository_model
from tests.support.scheduler.world import served_model, served_version


def model(name: str, **states: str) -> ServedModel:
    """Versions v1, v2, … as loading, ready, waiting, failed or unknown."""
    return served_model(
        name, *(served_version(name, int(key[1:]), state=state) for key, state in states.items())
    )


def found(catalogue: Catalogue, name: str, version: str = "") -> int:
    return catalogue.require(name, version).number


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
            catalogue.require(name, version)
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
    assert isinstance(catalogue.resolve(name, version), Loading) is loading


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
    assert isinstance(catalogue.resolve("m", "3"), Missing)


def test_a_model_without_versions_is_not_ready() -> None:
    assert Catalogue([]).all_serving()
    assert not Catalogue([model("m")]).all_serving()


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


def test_requests_wait_for_a_model_that_is_to_be_found() -> None:
    desired = DesiredModels()
    desired.add("space::m", Reason.TAKEN_OVER, awaited_as="m")
    catalogue = Catalogue([model("other", v1="ready")], desired)
    assert isinstance(catalogue.resolve("m", "1"), Loading)
    assert isinstance(catalogue.resolve("n", ""), Missing)
    assert not catalogue.all_settled()
    assert not catalogue.all_serving()
    desired.await_records(awaited=True)
    assert isinstance(catalogue.resolve("n", ""), Loading)
    assert isinstance(catalogue.resolve("other", ""), Ready)


def test_a_name_in_several_namespaces_is_ambiguous() -> None:
    versions = [served_version(f"{space}::m", namespace=space) for space in "ab"]
    models = [ServedModel(each.name, {1: each}, namespace=each.namespace) for each in versions]
    catalogue = Catalogue(models)
    with pytest.raises(InvalidArgument, match="There are 2 identifiers of model 'm'"):
        catalogue.require("m", "")
    assert catalogue.ready_versions("m") == []
    assert catalogue.ready_versions("a::m") == [versions[0]]
    for each in versions:
        each.life.begin_unload()
        each.life.end_unload()
    with pytest.raises(NotFound, match="Identifier of model 'm' is not found"):
        catalogue.require("m", "")


def on_demand(catalogue: Catalogue, name: str, version: str = "") -> bool | None:
    """Whether its load is pending; `None` if requests do not load it."""
    found = catalogue.resolve(name, version)
    return found.is_pending if isinstance(found, OnDemand) else None


def test_requests_load_a_model_of_which_no_version_is_ready() -> None:
    desired = DesiredModels()
    desired.on_demand.defer(repository_model("m", namespace=""))
    catalogue = Catalogue(desired=desired)
    assert on_demand(catalogue, "m") is False
    assert on_demand(catalogue, "m", "1") is False
    assert isinstance(catalogue.resolve("m", "2"), Missing)
    desired.pending_loads.begin("m")
    assert on_demand(catalogue, "m") is True
    # While the other version is loaded,
    catalogue.set_model(model("m", v1="loading", v3="ready"))
    assert on_demand(catalogue, "m", "1") is True
    assert isinstance(catalogue.resolve("m", ""), Ready)
    # and once it has failed.
    desired.pending_loads.end("m", None)
    assert isinstance(catalogue.resolve("m", "1"), Loading)
    catalogue.set_model(model("m", v1="failed", v3="ready"))
    assert isinstance(catalogue.resolve("m", "1"), Missing)


def test_a_load_on_demand_that_failed_is_the_error_of_its_model() -> None:
    desired = DesiredModels()
    desired.on_demand.defer(repository_model("m"))
    desired.on_demand["m"].error = Unavailable("no memory")
    catalogue = Catalogue(desired=desired)
    for version in ("", "1", "2"):
        with pytest.raises(Unavailable, match="no memory"):
            catalogue.require("m", version)
    assert on_demand(catalogue, "m") is False
