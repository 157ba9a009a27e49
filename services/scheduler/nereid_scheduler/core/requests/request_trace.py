"""Record of a sampled request; the readers in versions/tracing make spans or timestamps of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.observability.tracing import above_steps, child_context

if TYPE_CHECKING:
    from nereid.core.wire.messages import TracedTensor

# Later responses and skipped steps of a request are not recorded.
_MAX_RESPONSES: Final = 128


class RequestTrace:
    """Contexts and times of one sampled request, from its acceptance to its end.

    An attempt is one execution of the request, which may be lost with its instance.
    """

    __slots__ = (
        "_has_spans",
        "attempt",
        "attempts",
        "context",
        "ended_ns",
        "lookup",
        "parent",
        "queued_ns",
        "responses_ns",
        "root",
        "skipped_steps",
        "started_ns",
        "tensors",
        "waits",
    )

    def __init__(self, parent: bytes, *, has_spans: bool) -> None:
        """has_spans: whether attempts and lookups have contexts of their own."""
        self.parent = parent
        self.context = child_context(parent)
        self._has_spans = has_spans
        # Contexts of the latest attempt and of the cache lookup, if these have their own.
        self.attempt = self.lookup = b""
        self.attempts = 0
        # Start of the wait before the latest attempt; 0 stands for the time when it was queued.
        self.queued_ns = 0
        # Start of the latest attempt, and end of the latest one that has ended; 0 without any.
        self.started_ns = self.ended_ns = 0
        # True until the first attempt, and after a lost one.
        self.waits = True
        # Times of the responses, if there may be several.
        self.responses_ns: list[int] = []
        # Steps of an ensemble that were skipped.
        self.skipped_steps: list[str] = []
        # Copies of tensors, made while their memory was valid.
        self.tensors: list[TracedTensor] = []
        # The reader's own: what it collects for the client's request that led to this one.
        self.root: Any = None

    def begin_attempt(self, now_ns: int) -> bytes:
        """Begin an attempt; return the context to send to the instance."""
        self.attempts += 1
        self.queued_ns = self.ended_ns
        self.started_ns = now_ns
        self.waits = False
        if self._has_spans:
            self.attempt = child_context(self.context)
        return self.attempt or self.context

    def end_attempt(self, started_ns: int, ended_ns: int, *, lost: bool) -> None:
        """End the latest attempt. started_ns: when the instance began it, as far as is known."""
        self.started_ns = started_ns
        self.ended_ns = ended_ns
        self.waits = lost

    def undo_attempt(self) -> None:
        """Undo an attempt that the instance has not begun; the request is queued again."""
        self.attempts -= 1
        self.started_ns = 0
        self.waits = True

    def add_response(self, now_ns: int) -> None:
        """Add the time of one of several responses."""
        if len(self.responses_ns) < _MAX_RESPONSES:
            self.responses_ns.append(now_ns)

    def begin_steps(self) -> bytes:
        """Begin an ensemble's first steps; return the context to send with them."""
        self.waits = False
        return above_steps(self.context) if self._has_spans else self.context

    def add_skipped_step(self, model: str) -> None:
        """Add the model of a step that a condition has skipped."""
        if len(self.skipped_steps) < _MAX_RESPONSES:
            self.skipped_steps.append(model)

    def begin_lookup(self) -> bytes:
        """Begin a cache lookup; return the context to send to the cache."""
        if self._has_spans:
            self.lookup = child_context(self.context)
        return self.lookup or self.context
