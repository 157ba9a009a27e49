"""A short round over all targets; nightly to their full size, and with random inputs.

`make fuzz FUZZ="--seconds 600 cost"` looks for more.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import pytest

from tests.fuzz.cost.growing import MIN_BYTES, Growing, Target, examine
from tests.fuzz.cost.search import search
from tests.fuzz.cost.targets import TARGETS


@pytest.fixture(scope="module", autouse=True)
def _nothing_else_to_collect() -> Iterator[None]:
    """Each measurement collects garbage first: not among all that earlier tests have left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(params=TARGETS, ids=lambda target: target.name)
def target(request: pytest.FixtureRequest) -> Target:
    chosen: Target = request.param
    return chosen


@pytest.mark.slow
def test_known_inputs_are_cheap(target: Target) -> None:
    size = max(target.largest_bytes >> 6, 4 * MIN_BYTES)
    excesses = [examine(target, growing, size) for growing in target.inputs]
    assert [str(each) for each in excesses if each is not None] == []


@pytest.mark.nightly
def test_large_inputs_are_cheap(target: Target) -> None:
    excesses = [examine(target, growing, target.largest_bytes) for growing in target.inputs]
    assert [str(each) for each in excesses if each is not None] == []


@pytest.mark.nightly
def test_random_inputs_are_cheap(target: Target) -> None:
    excess = search(target, random.Random(7), 20)
    assert excess is None, f"{excess}\n{excess.growing!r}"


def _quadratic(data: bytes) -> int:
    return sum(data.count(b"x") for _ in range(0, len(data), 64))


def _greedy(data: bytes) -> list[bytes]:
    return [bytes(64) + data[at : at + 1] for at in range(len(data))]


@pytest.mark.parametrize(
    ("run", "what"), [(_quadratic, "times in two doublings"), (_greedy, "bytes of memory")]
)
def test_what_costs_too_much_is_found(run: object, what: str) -> None:
    growing = Growing("letters", b"x")
    generous = Target("demo", run, (growing,), steps_per_byte=1e6, fixed_bytes=0)  # type: ignore[arg-type]
    excess = examine(generous, growing, 1 << 17)
    assert excess is not None
    assert what in str(excess)


def test_what_takes_too_long_for_its_size_is_found() -> None:
    growing = Growing("letters", b"x")
    # Five times what is allowed: the machine may be noisy.
    run = lambda data: sum(byte for byte in data * 20)  # noqa: E731
    target = Target("demo", run, (growing,), steps_per_byte=2)
    excess = examine(target, growing, 1 << 19)
    assert excess is not None
    assert "steps a byte" in str(excess)
