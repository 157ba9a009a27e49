"""Which free instance gets the next batch."""

from nereid_scheduler.core.instances.router import Router


def test_the_one_idle_for_longest_is_next() -> None:
    router: Router[str] = Router()
    assert router.acquire_instance() is None
    for name in "abc":
        router.add_instance(name)
    assert [router.acquire_instance(), router.acquire_instance()] == ["a", "b"]
    router.release_instance("b")
    router.release_instance("a")
    assert [router.acquire_instance() for _ in range(4)] == ["c", "b", "a", None]
    assert (router.free, router.count) == (0, 3)


def test_a_removed_instance_is_not_chosen() -> None:
    router: Router[str] = Router()
    router.add_instance("busy")
    router.add_instance("free")
    assert router.acquire_instance() == "busy"
    assert router.remove_instance("busy")
    assert router.remove_instance("free")
    assert not router.remove_instance("free")
    router.release_instance("busy")
    assert router.acquire_instance() is None
    assert (router.free, router.count) == (0, 0)
