"""Flags of plain inputs and of ranges of levels."""

from __future__ import annotations

from dataclasses import dataclass

from nereid.config.flags import choice, flag, integer
from nereid.perf.measurement import LoadLevel


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, dims = text.rpartition(":")
    if not (colon and name):
        raise ValueError("expected NAME:D1,D2,...")
    return name, tuple(map(int, dims.split(",")))


def _steps(text: str) -> tuple[float, ...]:
    """A, A:B or A:B:STEP, with both ends."""
    if not text:
        return ()
    try:
        first, *more = (float(each) for each in text.split(":"))
        last, step = (*more, *(first, 1.0)[len(more) :])
    except ValueError:
        raise ValueError("expected A, A:B or A:B:STEP") from None
    if not (0 < first <= last and step > 0):
        raise ValueError("expected A:B:STEP, with A up to B, from more than 0")
    return tuple(first + number * step for number in range(int((last - first) / step + 1e-9) + 1))


@dataclass(frozen=True, kw_only=True)
class PlainSettings:
    """One model, zero or random tensors, and what is measured in turn."""

    model: str = flag(..., "the model", aliases=("-m", "--model-name"))
    model_version: str = flag("", "its version; else the server chooses", aliases=("-x",))
    batch_size: int = flag(1, "of each request", integer(1, 1 << 20), aliases=("-b",))
    input_data: str = flag("random", "random or zero", choice("random", "zero"))
    shape: tuple[tuple[str, tuple[int, ...]], ...] = flag(
        (), "of an input with dimensions that vary, NAME:D1,D2", _shape, repeated=True
    )
    string_length: int = flag(128, "of random BYTES elements", integer(0, 1 << 30))
    random_seed: int = flag(0, "of inputs and schedules", integer(0, 1 << 62))
    concurrency_range: tuple[float, ...] = flag((), "requests in flight, A:B:STEP", _steps)
    request_rate_range: tuple[float, ...] = flag((), "requests per second, A:B:STEP", _steps)

    def errors(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        if self.concurrency_range and self.request_rate_range:
            return ["--concurrency-range and --request-rate-range: give one of them"]
        return []

    @property
    def levels(self) -> tuple[LoadLevel, ...]:
        if self.request_rate_range:
            return tuple(LoadLevel("rate", each) for each in self.request_rate_range)
        return tuple(LoadLevel("concurrency", each) for each in self.concurrency_range or (1.0,))
