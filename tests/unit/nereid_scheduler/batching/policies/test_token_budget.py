"""Which requests of different lengths share a batch: lengths in, indices out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid_scheduler.batching.policies.token_budget import Choice, Extent, TokenLimits, choose

EMPTY = Extent(0, 0)


def extents_of(text: str) -> list[Extent]:
    """Return the extents of requests such as 8, or 2x8 for two rows of length 8."""
    parts = [part.rpartition("x") for part in text.split()]
    return [Extent(int(rows or 1), int(length)) for rows, _, length in parts]


def limits(
    *, rows: int = 32, tokens: int = 4096, requests: int = 99, fixed: float = 16
) -> TokenLimits:
    return TokenLimits(rows, tokens, requests, "shared", fixed)


@pytest.mark.parametrize(
    ("queued", "bounds", "indices", "batch", "reason"),
    [
        ("40", limits(), [0], (1, 40), ""),
        # A request may add padding of a quarter of the fixed cost.
        ("40 36", limits(), [0, 1], (2, 40), ""),
        ("40 35", limits(), [0], (1, 40), "length"),
        ("40 44", limits(), [0, 1], (2, 44), ""),
        ("40 45", limits(), [0], (1, 40), "length"),
        ("40 2x38", limits(), [0, 1], (3, 40), ""),
        ("40 2x37", limits(), [0], (1, 40), "length"),
        ("2x40 42", limits(), [0, 1], (3, 42), ""),
        ("2x40 43", limits(), [0], (2, 40), "length"),
        # The oldest leads, whatever its length is.
        ("9 200 200 200", limits(), [0], (1, 9), "length"),
        ("200 9 9 9", limits(), [0], (1, 200), "length"),
        # The nearest comes first, a shorter one before a longer one, the older of equal ones.
        ("40 43 41 39", limits(rows=2), [0, 3], (2, 40), "full"),
        ("40 43 41 38", limits(rows=2), [0, 2], (2, 41), "full"),
        ("40 39 39 39", limits(rows=3), [0, 1, 2], (3, 40), "full"),
        ("40 41 41 41", limits(rows=3), [0, 1, 2], (3, 41), "full"),
        # A longer one is near if the batch has become as long.
        ("40 43 43 200 43", limits(), [0, 1, 2, 4], (4, 43), "length"),
        ("40 40 40", limits(tokens=80), [0, 1], (2, 40), "tokens"),
        ("40 41", limits(tokens=81), [0], (1, 40), "tokens"),
        ("400 8", limits(tokens=80), [0], (1, 400), "tokens"),
        ("40 40 40", limits(requests=2), [0, 1], (2, 40), "shared"),
        ("8 256 8 256 8", limits(fixed=1e6), [0, 1, 2, 3, 4], (5, 256), ""),
        ("0 0", limits(), [0, 1], (2, 0), ""),
        # All join, and no other could.
        ("40 40", limits(rows=2), [0, 1], (2, 40), "full"),
        ("40 40", limits(tokens=100), [0, 1], (2, 40), "tokens"),
        ("40", limits(requests=1), [0], (1, 40), "shared"),
    ],
)
def test_the_nearest_lengths_join(
    queued: str, bounds: TokenLimits, indices: list[int], batch: tuple[int, int], reason: str
) -> None:
    assert choose(extents_of(queued), EMPTY, 0, bounds) == Choice(indices, Extent(*batch), reason)


@pytest.mark.parametrize(
    ("queued", "bounds", "indices", "batch", "reason"),
    [
        ("40 41 200", limits(), [0, 1], (5, 41), "length"),
        ("200", limits(), [], (3, 40), "length"),
        ("40 40", limits(requests=3), [0], (4, 40), "shared"),
    ],
)
def test_a_batch_goes_on_growing(
    queued: str, bounds: TokenLimits, indices: list[int], batch: tuple[int, int], reason: str
) -> None:
    found = choose(extents_of(queued), Extent(3, 40), 2, bounds)
    assert found == Choice(indices, Extent(*batch), reason)


@given(
    st.lists(st.builds(Extent, st.integers(1, 4), st.integers(0, 64)), min_size=1, max_size=40),
    st.builds(
        limits,
        rows=st.integers(1, 16),
        tokens=st.integers(1, 512),
        requests=st.integers(1, 8),
        fixed=st.floats(0, 1000),
    ),
)
def test_limits_hold_and_equal_lengths_keep_their_order(
    queued: list[Extent], bounds: TokenLimits
) -> None:
    found = choose(queued, EMPTY, 0, bounds)
    chosen = [queued[index] for index in found.indices]
    assert found.indices == sorted(set(found.indices))
    assert found.indices[0] == 0
    rows = sum(extent.rows for extent in chosen)
    assert found.batch == (rows, max(extent.length for extent in chosen))
    assert found.reason or len(chosen) == len(queued)
    if len(chosen) > 1:
        assert rows <= bounds.max_rows
        assert rows * found.batch.length <= bounds.max_tokens
        assert len(chosen) <= bounds.max_requests
    for place, extent in enumerate(queued):
        if place not in found.indices:
            younger = [queued[index].length for index in found.indices if index > place]
            assert extent.length not in younger
