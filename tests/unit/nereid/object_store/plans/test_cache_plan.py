"""What is removed from a cache, and in which order."""

from __future__ import annotations

from nereid.object_store.plans.cache_plan import (
    CacheContent,
    CachedObject,
    CachedTree,
    Eviction,
    plan_eviction,
)

CONTENT = CacheContent(
    {
        "old": CachedObject(10, 1),
        "shared": CachedObject(100, 1),
        "new": CachedObject(20, 1),
        "loose": CachedObject(5, 3),
    },
    {
        "first": CachedTree(frozenset({"old", "shared"}), 2),
        "second": CachedTree(frozenset({"new", "shared"}), 4),
    },
)


def test_its_size() -> None:
    assert CONTENT.size == 135
    assert CacheContent().size == 0


def test_the_least_recently_used_goes_first() -> None:
    assert plan_eviction(CONTENT, 0) == Eviction()
    assert plan_eviction(CONTENT, 1) == Eviction(("first",), ("old",), 10)
    assert plan_eviction(CONTENT, 11) == Eviction(("first",), ("old", "loose"), 15)


def test_what_two_trees_have_goes_with_the_second() -> None:
    everything = Eviction(("first", "second"), ("old", "loose", "new", "shared"), 135)
    assert plan_eviction(CONTENT, 16) == everything
    assert plan_eviction(CONTENT, 136) is None


def test_what_is_in_use_remains() -> None:
    used = CacheContent(
        CONTENT.objects, {**CONTENT.trees, "first": CONTENT.trees["first"]._replace(in_use=True)}
    )
    assert plan_eviction(used, 25) == Eviction(("second",), ("loose", "new"), 25)
    assert plan_eviction(used, 26) is None


def test_what_is_about_to_be_used_remains() -> None:
    assert plan_eviction(CONTENT, 10, {"old", "loose"}) == Eviction(
        ("first", "second"), ("new", "shared"), 120
    )


def test_a_tree_may_lack_an_object() -> None:
    content = CacheContent({}, {"tree": CachedTree(frozenset({"gone"}), 1)})
    assert plan_eviction(content, 0) == Eviction()
    assert plan_eviction(content, 1) is None
