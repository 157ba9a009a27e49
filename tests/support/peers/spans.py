"""A tracer that keeps its spans, for tests of what services record."""

from __future__ import annotations

from nereid.observability.tracing import Span


class RecordedSpans:
    """A nereid.observability.tracing.Tracer."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.closed = False

    def record(self, *spans: Span) -> None:
        self.spans += spans

    def close(self) -> None:
        self.closed = True

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Span:
        (span,) = self.named(name)
        return span
