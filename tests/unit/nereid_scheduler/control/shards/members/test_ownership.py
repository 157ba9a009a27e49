"""Which member owns which model."""

from collections import Counter

import pytest

from nereid_scheduler.control.shards.members.ownership import OwnedModels, group_keys, owner_of


@pytest.mark.parametrize(
    ("compositions", "keys"),
    [
        pytest.param([], {}, id="none"),
        pytest.param([("b", ["c", "a"])], {"a": "a", "b": "a", "c": "a"}, id="ensemble"),
        pytest.param([("m", []), ("n", [])], {"m": "m", "n": "n"}, id="apart"),
        pytest.param(
            [("e", ["s"]), ("f", ["t"]), ("g", ["e", "f"])],
            dict.fromkeys("efgst", "e"),
            id="nested",
        ),
        pytest.param(
            [("z", ["y"]), ("x", ["w"]), ("y", ["x"]), ("a", ["w"])],
            dict.fromkeys("awxyz", "a"),
            id="joined by a shared step",
        ),
    ],
)
def test_models_that_are_composed_have_the_smallest_name_as_their_key(
    compositions: list[tuple[str, list[str]]], keys: dict[str, str]
) -> None:
    assert group_keys(compositions) == keys
    assert group_keys(reversed(compositions)) == keys


def test_owners_do_not_depend_on_the_order_of_members_and_few_change_with_them() -> None:
    names = [f"model{number}" for number in range(400)]
    members = ["a:1", "b:1", "c:1", "d:1"]
    owners = {name: owner_of(name, members) for name in names}
    assert owners == {name: owner_of(name, reversed(members)) for name in names}
    counts = Counter(owners.values())
    assert set(counts) == set(members)
    assert max(counts.values()) < 1.4 * len(names) / len(members)
    without = {name: owner_of(name, members[:3]) for name in names}
    moved = {name for name in names if owners[name] != without[name]}
    assert moved == {name for name in names if owners[name] == "d:1"}
    assert owner_of("model0", []) is None


def test_a_groups_models_have_one_owner() -> None:
    owned = OwnedModels("a")
    assert owned.owner("m") is None
    assert not owned.owns("m")
    owned.set_members(frozenset({"a", "b", "c"}))
    assert owned.members == {"a", "b", "c"}
    assert owned.set_groups([("e", ["s1", "s2", "s3"])])
    assert not owned.set_groups([("s2", ["e", "s3", "s1"])])
    assert {owned.owner(name) for name in ("e", "s1", "s2", "s3")} == {
        owner_of("e", ["a", "b", "c"])
    }
    owned.set_members(frozenset({"a"}))
    assert owned.owns("s1")
    assert owned.owns("of no group")
