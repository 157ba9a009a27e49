"""Which free instance gets the next batch."""

from __future__ import annotations

from nereid.services.scheduler.executors.router import Router


def test_the_one_idle_for_longest_is_next() -> None:
    router: Router[str] = Router()
    assert router.take() is None
    for name in "abc":
        router.add(name)
    assert [router.take(), router.take()] == ["a", "b"]
    router.release("b")
    router.release("a")
    assert [router.take() for _ in range(4)] == ["c", "b", "a", None]
    assert (router.free, router.count) == (0, 3)


def test_who_is_gone_is_not_chosen() -> None:
    router: Router[str] = Router()
    router.add("busy")
    router.add("free")
    assert router.take() == "busy"
    assert router.remove("busy")
    assert router.remove("free")
    assert not router.remove("free")
    router.release("busy")
    assert router.take() is None
    assert (router.free, router.count) == (0, 0)
