"""Times that large texts of requests and responses took to be decoded or encoded, by model."""

# layout: compiled

from __future__ import annotations

from typing import Final

# A gateway serves fewer models than this; names beyond it are not counted.
_MAX_MODELS: Final = 10_000


class TextTimes:
    """Number of large texts of one model, and their durations in nanoseconds."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0


class LargeTexts:
    """Counts large texts by model."""

    def __init__(self) -> None:
        self.by_model: dict[str, TextTimes] = {}

    def record(self, model: str, took_ns: int) -> None:
        """Count a text, which took so long from its arrival, with the wait for a process."""
        times = self.by_model.get(model)
        if times is None:
            if len(self.by_model) >= _MAX_MODELS:
                return
            times = self.by_model[model] = TextTimes()
        times.count += 1
        times.ns += took_ns
