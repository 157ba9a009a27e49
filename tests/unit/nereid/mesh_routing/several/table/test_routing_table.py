"""Which scheduler a model's requests go to."""

from __future__ import annotations

from nereid.core.wire.messages import Ownership
from nereid.mesh_routing.several.table.routing_table import RoutingTable


def table_of(*keys: str) -> RoutingTable[str]:
    """All of them live; each owns a model of its own name."""
    table = RoutingTable[str]()
    for key in keys:
        table.add(key)
        table.on_up(key)
        table.on_ownership(key, Ownership(f"name-{key}", 1, (f"model-{key}",)))
    return table


def test_requests_go_to_who_names_their_model() -> None:
    table = table_of("a", "b")
    assert table.find("model-a") == "a"
    assert table.find("model-b") == "b"
    assert table.owner("model-b") == "b"
    assert list(table.live()) == ["a", "b"]


def test_a_model_that_none_names_goes_to_the_first_that_is_live() -> None:
    table = table_of("a", "b")
    assert table.find("other") == "a"
    assert table.owner("other") is None
    table.on_down("a")
    assert table.find("other") == "b"
    table.on_down("b")
    assert table.find("other") is None
    assert list(table.live()) == []


def test_a_scheduler_that_announces_nothing_has_all_models() -> None:
    table = RoutingTable[str]()
    table.add("only")
    assert table.find("m") is None
    table.on_up("only")
    assert table.find("m") == "only"


def test_of_two_the_larger_epoch_has_a_model_and_then_the_larger_name() -> None:
    table = table_of("a", "b")
    table.on_ownership("a", Ownership("name-a", 7, ("m",)))
    table.on_ownership("b", Ownership("name-b", 6, ("m",)))
    assert table.find("m") == "a"
    table.on_ownership("b", Ownership("name-b", 7, ("m",)))
    assert table.find("m") == "b"
    table.on_down("b")
    assert table.find("m") == "a"


def test_models_of_a_lost_scheduler_wait_for_another_one_to_name_them() -> None:
    table = table_of("a", "b")
    table.on_down("b")
    assert table.find("model-b") is None
    table.on_ownership("a", Ownership("name-a", 2, ("model-a", "model-b")))
    assert table.find("model-b") == "a"


def test_models_of_a_scheduler_that_is_lost_for_long_are_as_any_others() -> None:
    table = table_of("a", "b")
    table.forget("b")
    assert table.find("model-b") == "b"
    table.on_down("b")
    table.forget("b")
    assert table.find("model-b") == "a"


def test_nothing_goes_to_a_scheduler_that_is_leaving() -> None:
    table = table_of("a", "b")
    table.on_ownership("a", Ownership("name-a", 1, ("model-a",), leaving=True))
    assert table.find("model-a") is None
    assert table.find("other") == "b"
    # Control calls may still go there.
    assert list(table.live()) == ["b", "a"]
    table.on_ownership("b", Ownership("name-b", 2, ("model-a",)))
    assert table.find("model-a") == "b"


def test_who_leaves_can_be_found_while_there_is_no_other() -> None:
    table = table_of("a", "b")
    table.on_ownership("a", Ownership("name-a", 1, (), leaving=True))
    assert table.find_leaving("model-a") is None
    table.on_down("b")
    assert (table.find("model-a"), table.find_leaving("model-a")) == (None, "a")
    assert table.find_leaving("model-b") is None
    table.on_down("a")
    assert table.find_leaving("model-a") is None


def test_models_that_a_leaving_scheduler_names_no_more_wait_as_well() -> None:
    table = table_of("a", "b")
    table.on_ownership("a", Ownership("name-a", 2, (), leaving=True))
    assert table.find("model-a") is None
    table.on_down("a")
    assert table.find("model-a") is None
    table.on_ownership("b", Ownership("name-b", 3, ("model-a", "model-b")))
    assert table.find("model-a") == "b"
    table.on_ownership("b", Ownership("name-b", 3, ("model-b",)))
    table.forget("a")
    assert table.find("model-a") == "b"


def test_a_leaving_scheduler_with_the_larger_epoch_hides_no_other() -> None:
    table = table_of("a", "b")
    table.on_ownership("a", Ownership("name-a", 9, ("m",), leaving=True))
    table.on_ownership("b", Ownership("name-b", 2, ("m",)))
    assert table.find("m") == "b"


def test_a_scheduler_that_comes_back_under_another_address_is_not_awaited_at_the_first() -> None:
    table = table_of("a", "b")
    table.on_down("b")
    table.add("c")
    table.on_up("c")
    table.on_ownership("c", Ownership("name-b", 3, ()))
    assert table.find("model-b") == "a"


def test_a_removed_scheduler_is_forgotten() -> None:
    table = table_of("a", "b")
    assert list(table.live()) == ["a", "b"]
    table.on_down("a")
    assert list(table.live()) == ["b"]
    table.remove("a")
    assert table.find("model-a") == "b"


def test_names_without_their_namespace_are_found_where_they_are_unique() -> None:
    table = table_of("a", "b")
    table.on_ownership("a", Ownership("name-a", 1, ("n1::m", "n1::twice", "n1::own")))
    table.on_ownership("b", Ownership("name-b", 1, ("n2::twice", "own", "n2::mine")))
    assert table.find("n1::m") == "a"
    assert table.find("m") == "a"
    assert table.find("mine") == "b"
    assert table.owner("twice") is None
    assert table.find("own") == "b"
