"""Which models a view shows."""

from __future__ import annotations

import pytest

from nereid.pb import nereid_pb2 as pb
from nereid_gateway.core.access.grant import Grant, Permission
from nereid_gateway.extras.console.loads import Key, Loads
from nereid_gateway.extras.console.look import IndexEntry
from nereid_gateway.extras.console.models_page import ModelPages
from nereid_gateway.extras.console.queries import ORDERS, View


def entry(name: str, version: str = "1", state: str = "READY", reason: str = "") -> IndexEntry:
    return IndexEntry(Key(name, version), state, reason)


INDEX = (
    entry("b", "10"),
    entry("b", "9"),
    entry("a"),
    entry("Zebra", state="UNAVAILABLE", reason="no such file"),
    entry("c", state="UNAVAILABLE", reason="unloaded"),
    entry("d", "", "", ""),
)


def load(p99_us: float, failures: int = 0) -> pb.VersionLoad:
    recent = pb.VersionLoad.Minutes(requests=9, failures=failures, p99_us=p99_us)
    return pb.VersionLoad(last_30=recent, last_5=recent)


LOADS = Loads(
    {Key("b", "9"): load(5, failures=1), Key("d", ""): load(2000), Key("c", "1"): load(7)}
)


def keys(view: View) -> list[tuple[str, str]]:
    return [each.key for each in ModelPages().page(INDEX, LOADS, view).entries]


def test_failed_ones_come_first_and_versions_in_their_order() -> None:
    names = [("Zebra", "1"), ("a", "1"), ("b", "9"), ("b", "10"), ("c", "1"), ("d", "")]
    assert keys(View()) == names
    assert keys(View(offset=1, limit=2)) == names[1:3]


def test_the_worst_come_first_on_every_page() -> None:
    by_p99 = [("Zebra", "1"), ("d", ""), ("c", "1"), ("b", "9"), ("a", "1"), ("b", "10")]
    assert keys(View(sort="p99")) == by_p99
    assert keys(View(sort="p99", offset=2, limit=2)) == by_p99[2:4]
    assert keys(View(sort="errors", limit=2)) == [("Zebra", "1"), ("b", "9")]


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_has_all_models(order: str) -> None:
    assert sorted(keys(View(sort=order))) == sorted(keys(View()))


def test_a_query_is_a_part_of_the_name_in_any_case() -> None:
    assert keys(View(query="zeb")) == [("Zebra", "1")]
    assert ModelPages().page(INDEX, LOADS, View(query="b", limit=1)).matched == 3


def test_one_model() -> None:
    assert keys(View(model="b")) == [("b", "9"), ("b", "10")]
    assert keys(View(model="b", version="9")) == [("b", "9")]
    assert keys(View(model="B")) == []


def test_a_viewer_sees_the_models_of_its_rights() -> None:
    grant = Grant((Permission(frozenset({"console"}), ("b",)), Permission(frozenset({"trace"}))))
    assert keys(View(grant=grant)) == [("b", "9"), ("b", "10")]
    assert keys(View(model="a", grant=grant)) == []


def test_another_index_is_searched_anew() -> None:
    pages = ModelPages()
    assert pages.page(INDEX, LOADS, View()).matched == 6
    assert pages.page(INDEX[:2], LOADS, View()).matched == 2
    assert pages.page((), LOADS, View()).entries == ()
