"""A request to an ensemble while its steps are under way.

Notes what has been asked and what has come; what follows from it is its owner's decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.services.scheduler.ensembles.graph import EnsembleRun

if TYPE_CHECKING:
    from nereid.services.scheduler.ensembles.graph import Call
    from nereid.services.scheduler.ensembles.step_tensors import Asked, Loan, StepForm, Tensor
    from nereid.services.scheduler.requests.entry import Batch, Entry


class Run:
    """One request on its way, and an attempt at it: when tensors were lost, there is another.

    calls: the steps under way, and where each of them is queued. loans: segments not given back.
    """

    __slots__ = (
        "asked",
        "batch",
        "calls",
        "compute_ns",
        "entry",
        "graph",
        "held",
        "loans",
        "paused",
        "stale",
        "started_ns",
        "told",
        "told_ns",
        "trace",
    )

    def __init__(self, batch: Batch, asked: Asked, started_ns: int) -> None:
        self.batch = batch
        self.entry = batch.entries[0]
        self.asked = asked
        self.graph: EnsembleRun[Tensor] = EnsembleRun(asked.plan)
        self.calls: dict[Call[Tensor], tuple[StepForm, Entry]] = {}
        self.loans: set[Loan] = set()
        self.started_ns = started_ns
        # How many answers have been told, and when the last of them was.
        self.told = 0
        self.told_ns = started_ns
        # The client cannot keep up; and the calls that others cannot keep up with.
        self.paused = False
        self.held: set[Call[Tensor]] = set()
        # Some step was executed by an instance of what its model is no longer.
        self.stale = False
        # Of all steps together: input, infer, output.
        self.compute_ns = (0, 0, 0)
        trace = self.entry.trace
        context = self.entry.request.trace_context
        self.trace = context if trace is None else trace.begin_steps()

    def add(self, entry: Entry, revision: bytes) -> None:
        """A step was executed, or answered from the cache, its model being of this revision."""
        execution = entry.execution
        if execution is None:
            self.stale = self.stale or entry.revision != revision
        else:
            before = self.compute_ns
            self.compute_ns = (
                before[0] + execution.compute_input_ns,
                before[1] + execution.compute_infer_ns,
                before[2] + execution.compute_output_ns,
            )
            self.stale = self.stale or execution.revision != revision
