"""The limit of an ensemble's open calls of each step, over all its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid_scheduler.versions.ensembles.ensemble_run import EnsembleRun
    from nereid_scheduler.versions.ensembles.graphs.graph import StepCall
    from nereid_scheduler.versions.ensembles.step_tensors import Tensor


class StepLimits:
    """Open calls of each step, by its index, and the calls that wait for one of them to end."""

    def __init__(self, max_open: int) -> None:
        """max_open: maximum number of open calls of a step; 0 for no limit."""
        self._max_open = max_open
        self._open: dict[int, int] = {}
        self._waiting: dict[int, dict[StepCall[Tensor], EnsembleRun]] = {}

    def must_wait(self, run: EnsembleRun, call: StepCall[Tensor]) -> bool:
        """Return whether a call has to wait; `next_call` returns it when it is its turn."""
        # A request that a model has made may be what an open call waits for.
        if not self._max_open or run.entry.request.caller or self._has_free(call.step.index):
            return False
        self._waiting.setdefault(call.step.index, {})[call] = run
        return True

    def add_open(self, call: StepCall[Tensor]) -> None:
        """Count a call that was submitted."""
        if self._max_open:
            self._open[call.step.index] = self._open.get(call.step.index, 0) + 1

    def end(self, call: StepCall[Tensor]) -> bool:
        """Count a submitted call as ended; return whether another one may go now."""
        index = call.step.index
        if self._max_open:
            self._open[index] -= 1
        return bool(self._waiting.get(index))

    def remove_waiting(self, run: EnsembleRun) -> None:
        """Remove the calls of a run that has ended."""
        for calls in self._waiting.values():
            for call in [call for call, waiting in calls.items() if waiting is run]:
                del calls[call]

    def next_call(self) -> tuple[EnsembleRun, StepCall[Tensor]] | None:
        """Return the next call that need not wait any longer, in order of arrival."""
        for index, calls in self._waiting.items():
            if calls and self._has_free(index):
                call = next(iter(calls))
                return calls.pop(call), call
        return None

    def _has_free(self, index: int) -> bool:
        return self._open.get(index, 0) < self._max_open
