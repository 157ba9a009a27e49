from nereid_adopt.proxy.held_bytes import HeldBytes, Holder


def test_large_requests_find_no_space_together() -> None:
    held = HeldBytes(100_000)
    first, second = Holder(held), Holder(held)
    assert first.add(60_000)
    assert second.add(40_000)
    assert held.is_full
    assert not second.add(1)
    assert (first.size_bytes, second.size_bytes, held.size_bytes) == (60_000, 40_000, 100_000)
    first.release()
    assert held.size_bytes == 40_000
    assert second.add(1)


def test_small_requests_are_held_in_any_case() -> None:
    held = HeldBytes(0)
    small = Holder(held)
    assert small.add(16_384)
    assert not small.add(1)
    assert held.size_bytes == 16_384


def test_bytes_are_released_with_their_holder() -> None:
    held = HeldBytes(100)
    holder = Holder(held)
    assert holder.add(100)
    del holder
    assert held.size_bytes == 0
