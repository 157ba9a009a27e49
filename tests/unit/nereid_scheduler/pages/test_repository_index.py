"""The repository index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nereid.core.errors import Unavailable
from nereid_scheduler.core.models.desired_models import DesiredModels, Reason
from nereid_scheduler.pages.repository_index import repository_index
from nereid_scheduler.placement.models.catalogue import Catalogue, FoundName, ServedModel
from tests.support.scheduler.world import found, served_model, served_version

if TYPE_CHECKING:
    from collections.abc import Mapping


def model(name: str, **states: str) -> ServedModel:
    return served_model(
        name, *(served_version(name, int(key[1:]), state=state) for key, state in states.items())
    )


def index(
    catalogue: Catalogue,
    names: Mapping[str, FoundName] | None = None,
    desired: DesiredModels | None = None,
    *,
    ready_only: bool = False,
) -> list[Any]:
    desired = desired or DesiredModels()
    return list(repository_index(catalogue, desired, names or {}, ready_only=ready_only).models)


def test_the_index_names_states_and_reasons() -> None:
    refused = ServedModel("bare", reason="no versions")
    catalogue = Catalogue([refused, model("m", v1="failed", v2="unknown", v3="ready")])
    entries = [
        (e.name, e.version, e.state, e.reason)
        for e in index(catalogue, {"bare": FoundName("bare"), "m": FoundName("m")})
    ]
    assert entries == [
        ("bare", "", "UNAVAILABLE", "no versions"),
        ("m", "1", "UNAVAILABLE", "because"),
        ("m", "2", "UNKNOWN", ""),
        ("m", "3", "READY", ""),
    ]
    (twice,) = index(catalogue, {"m": FoundName("m", "in two repositories")})
    assert (twice.version, twice.state, twice.reason) == ("", "UNAVAILABLE", "in two repositories")
    assert [e.version for e in index(catalogue, ready_only=True)] == ["3"]


def test_the_index_says_why_a_model_without_versions_was_refused() -> None:
    desired = DesiredModels()
    desired.last_loads.refusals |= {"m": "bad", "unread": "bad"}
    catalogue = Catalogue([model("m", v1="ready")], desired)
    names = {name: FoundName(name) for name in ("m", "unread", "untouched")}
    entries = [(e.name, e.state, e.reason) for e in index(catalogue, names, desired)]
    assert entries == [("m", "READY", ""), ("unread", "UNAVAILABLE", "bad"), ("untouched", "", "")]
    assert catalogue.all_serving()


def test_the_index_says_why_a_repository_could_not_be_read() -> None:
    desired = DesiredModels()
    desired.last_loads.refusals |= {"refused": "bad"}
    catalogue = Catalogue([model("m", v1="ready")], desired)
    names = {name: FoundName(name, problem="away") for name in ("m", "refused", "untouched")}
    entries = [(e.name, e.state, e.reason) for e in index(catalogue, names, desired)]
    assert entries == [
        ("m", "READY", ""),
        ("refused", "UNAVAILABLE", "bad"),
        ("untouched", "UNAVAILABLE", "away"),
    ]


def test_a_model_that_is_to_be_found_is_shown_as_loading() -> None:
    desired = DesiredModels()
    desired.add("space::m", Reason.TAKEN_OVER, awaited_as="m")
    catalogue = Catalogue([model("other", v1="ready")], desired)
    shown = {(each.name, each.state) for each in index(catalogue, None, desired)}
    assert shown == {("m", "LOADING"), ("other", "READY")}
    ready = index(catalogue, None, desired, ready_only=True)
    assert [each.name for each in ready] == ["other"]


def test_a_model_on_demand_is_ready_unless_it_has_failed() -> None:
    desired = DesiredModels()
    desired.on_demand.defer(found("m"))
    catalogue = Catalogue(desired=desired)
    names = {"m": FoundName("m")}

    def shown(*, ready_only: bool = False) -> list[tuple[str, str, str]]:
        entries = index(catalogue, names, desired, ready_only=ready_only)
        return [(each.version, each.state, each.reason) for each in entries]

    assert shown() == [("1", "READY", "not in memory; the next request loads it")]
    assert shown(ready_only=True) == shown()
    desired.pending_loads.begin("m")
    assert shown() == [("1", "LOADING", "")]
    assert shown(ready_only=True) == []
    desired.pending_loads.end("m", None)
    desired.on_demand["m"].error = Unavailable("no memory")
    assert shown() == [("1", "UNAVAILABLE", "Unavailable: no memory")]
