"""Inputs that grow, the bounds of a target, and whether it keeps to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.fuzz.cost.measure import peak_bytes, processor_s, step_s

MIN_BYTES = 1 << 12
MAX_BYTES = 1 << 22
# Over four times the input, linear costs grow four times, quadratic ones sixteen.
_MAX_GROWTH = 9.0
# Below this, a measurement says nothing of growth.
_MIN_S = 0.02
_REPEATS = 3


@dataclass(frozen=True)
class Growing:
    """An input of any size; a number in the fragment makes each of its copies another."""

    name: str
    fragment: bytes | Callable[[int], bytes]
    start: bytes = b""
    end: bytes = b""

    def make(self, size: int) -> bytes:
        """Of about that size."""
        left = max(size - len(self.start) - len(self.end), 0)
        if isinstance(self.fragment, bytes):
            middle = self.fragment * (left // len(self.fragment) + 1)
        else:
            # The middle one is as long as most.
            count = left // len(self.fragment(left // 20)) + 1
            middle = b"".join(map(self.fragment, range(count)))
        return self.start + middle + self.end


@dataclass(frozen=True)
class Target:
    """A parser, and what it may take."""

    name: str
    run: Callable[[bytes], object]
    inputs: tuple[Growing, ...]
    # Steps of measure.step_s and bytes of memory, for each byte of the input.
    steps_per_byte: float = 10.0
    memory_per_byte: float = 40.0
    # What random inputs are made of.
    words: tuple[bytes, ...] = ()
    largest_bytes: int = MAX_BYTES
    # Beside what grows with the input.
    fixed_steps: float = 1_000_000.0
    fixed_bytes: int = 8 << 20


@dataclass(frozen=True)
class Excess:
    """An input that cost too much."""

    target: str
    growing: Growing
    size: int
    what: str

    def __str__(self) -> str:
        return f"{self.target}, {self.growing.name}, {self.size} bytes: {self.what}"


def examine(target: Target, growing: Growing, largest_bytes: int) -> Excess | None:
    """Double an input until it is large, or costs too much."""
    taken: list[float] = []
    size = MIN_BYTES
    data = b""
    while size <= min(largest_bytes, target.largest_bytes):
        data = growing.make(size)
        run = partial(target.run, data)
        taken_s = processor_s(run)
        allowed_s = (target.fixed_steps + target.steps_per_byte * len(data)) * step_s()
        if taken_s > allowed_s:
            taken_s = _least_s(run, taken_s)
        if taken_s > allowed_s:
            steps = taken_s / step_s() / len(data)
            return Excess(
                target.name, growing, len(data), f"{taken_s:.2f} s, {steps:.0f} steps a byte"
            )
        taken.append(taken_s)
        if len(taken) > 2 and taken_s > max(taken[-3] * _MAX_GROWTH, _MIN_S):
            # Growth is judged by the least of several runs, of both sizes.
            less_s = _least_s(partial(target.run, growing.make(size // 4)), taken[-3])
            taken_s = _least_s(run, taken_s)
            if taken_s > max(less_s * _MAX_GROWTH, _MIN_S):
                growth = taken_s / less_s
                return Excess(
                    target.name, growing, len(data), f"{growth:.0f} times in two doublings"
                )
        size *= 2
    peak = peak_bytes(partial(target.run, data))
    if peak > target.fixed_bytes + target.memory_per_byte * len(data):
        what = f"{peak / len(data):.0f} bytes of memory a byte"
        return Excess(target.name, growing, len(data), what)
    return None


def _least_s(run: Callable[[], object], least_s: float) -> float:
    return min(least_s, *(processor_s(run) for _ in range(_REPEATS - 1)))
