"""An ensemble's version: its requests become requests to other models' versions.

Those go through the ordinary queues, so that steps of many ensembles, and requests of clients,
share batches. Which step comes when is the graph's decision; this has it done. Tensors are passed
on as they came; nothing of them is looked at.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import (
    INTERNAL_MESSAGE,
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NereidError,
    Unavailable,
    error_of,
)
from nereid.core.messages import InferRequest, InferResponse, SharedMemory
from nereid.observability.metrics import CANCELED, OTHER
from nereid.services.scheduler.batching.queues import request_prefix
from nereid.services.scheduler.ensembles.ensemble_run import Run
from nereid.services.scheduler.ensembles.step_tensors import EnsembleHeads, Loan, StepForm, Tensor
from nereid.services.scheduler.models.decoupled_version import DecoupledVersion, check_taker
from nereid.services.scheduler.models.model_version import ModelVersion
from nereid.services.scheduler.observability.statistics import Execution
from nereid.services.scheduler.requests.entry import about, tell
from nereid.services.scheduler.requests.shared_tensors import inline
from nereid.shm.mappings import LostError, exists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nereid.services.scheduler.ensembles.graph import Call, Moves, Step
    from nereid.services.scheduler.models.model_version import OnResponse
    from nereid.services.scheduler.requests.entry import Batch, Entry
    from nereid.services.scheduler.requests.nested_calls import Lineage

    # The version that runs a step now; raises NereidError if there is none.
    FindModel = Callable[[Step], ModelVersion]

_log = logging.getLogger(__name__)

_DEADLOCK: Final = (
    "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
)
# A step that answers many times waits when so many of a request's steps are under way.
_MOST_CALLS: Final = 1024
# So many are remembered: of each step some for each set of outputs that was asked for.
_MOST_FORMS: Final = 4096
_CANCELS: Final = frozenset({Cancelled.code, DeadlineExceeded.code})
_now_ns = time.monotonic_ns


class EnsembleVersion(ModelVersion):
    """As ModelVersion, but has no instances: its queue is empty at the end of each loop turn.

    With decoupled models among its steps, on_answer is called as by a DecoupledVersion.
    """

    asks_others = True

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        # Set before requests come.
        self.find_model: FindModel
        # Looks after requests that models make; None: none make any.
        self.lineage: Lineage | None = None
        self.heads = EnsembleHeads(self.config, self.number)
        self._forms: dict[Step, StepForm] = {}
        self._runs: dict[Entry, Run] = {}
        wanted = self.config.proto.ensemble_scheduling.max_inflight_requests
        self._most_calls = wanted or _MOST_CALLS

    def submit(
        self, request: InferRequest, on_response: OnResponse, *, at_once: bool = False
    ) -> Entry:
        check_taker(self.config, request)
        return super().submit(request, on_response, at_once=at_once)

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """The entry's client cannot keep up with the answers, or it can again."""
        run = self._runs.get(entry)
        if run is not None:
            run.paused = paused
            for call in run.calls:
                self._set_pace(run, call)

    def forget_models(self) -> None:
        """The versions that run the steps may be others now."""
        self._forms.clear()

    def cancel(self, entry: Entry) -> None:
        if entry in self._runs:
            self.statistics.record_failure(entry, _now_ns(), CANCELED)
        super().cancel(entry)

    # ---- from the queue to the steps

    def _dispatch(self, now_ns: int) -> None:
        while (batch := self._batcher.take(now_ns, 1)) is not None:
            self._begin(batch, now_ns)
        self._alarm.set(self._batcher.wake_at_ns(now_ns), now_ns)

    def _await_instance(self) -> None:
        """Do nothing: an ensemble waits for no instance of its own."""

    def _begin(self, batch: Batch, now_ns: int) -> None:
        entry = batch.entries[0]
        try:
            asked = self.heads.read(entry.request.head)
        except NereidError as error:
            self._fail(entry, error, now_ns)
            return
        run = self._runs[entry] = Run(batch, asked, now_ns)
        self._go_on(run, run.graph.begin(asked.tensors(entry.request.payloads)))

    def _go_on(self, run: Run, moves: Moves[Tensor]) -> None:
        """Do what the graph says is to be done now."""
        try:
            for call in moves.calls:
                self._call(run, call)
            if not run.graph.finished:
                for reply in moves.replies:
                    self._tell(run, self._reply(run, reply))
            elif run.graph.stuck and not self.config.decoupled:
                text = request_prefix(run.entry.request.request_id) + _DEADLOCK
                self._give_up(run, InvalidArgument.code, text)
            else:
                self._finish(run, moves.replies)
        except LostError:
            self._begin_again(run)
        except NereidError as error:
            self._give_up(run, error.code, error.message)
        except Exception:
            _log.exception("a step of %r cannot be taken", self, extra=about(run.entry))
            self._give_up(run, Internal.code, INTERNAL_MESSAGE)

    def _call(self, run: Run, call: Call[Tensor]) -> None:
        step = call.step
        form = self._forms.get(step)
        if form is None:
            form = StepForm(step, self.find_model(step), run.asked)
            if len(self._forms) >= _MOST_FORMS:
                # Their steps are those of other plans, of which clients could ask for any number.
                self._forms.clear()
            self._forms[step] = form
        asked = run.entry.request
        request = InferRequest(
            0,
            form.head(call.tensors),
            [tensor.payload for tensor in call.tensors.values()],
            asked.request_id,
            asked.parameters,
            asked.priority,
            asked.timeout_us,
            asked.deadline,
            run.trace,
            caller=asked.caller,
            depth=asked.depth,
            accepts_many=True,
        )
        entry = form.model.submit(request, partial(self._responded, run, call))
        run.calls[call] = form, entry
        if request.caller and self.lineage is not None:
            # A model that asked the ensemble waits for its steps.
            self.lineage.note(request, form.model, entry)

    # ---- from the steps to the answer

    def _responded(self, run: Run, call: Call[Tensor], response: InferResponse) -> None:
        if self._runs.get(run.entry) is not run:
            self.shared_tensors.unwanted(response)
            return
        form, entry = run.calls[call]
        if not response.more:
            del run.calls[call]
        if response.error is not None:
            if self._has_lost(run, call.tensors.values()):
                self._begin_again(run)
            else:
                self._give_up(run, response.error.code, response.error.message)
            return
        if not response.more:
            run.add(entry, form.model.revision)
            self._let_go(run, call.tensors.values())
        try:
            outputs = form.outputs(response) if response.head else None
        except NereidError as error:
            self.shared_tensors.unwanted(response)
            self._give_up(run, error.code, error.message)
            return
        if response.segment_name and outputs is not None:
            self._borrow(run, outputs.values())
        if outputs is not None or not response.more:
            # Else it says no more than that there may be several.
            self._go_on(run, run.graph.responded(call, outputs, last=not response.more))
        if self.config.decoupled:
            self._keep_pace(run, call)

    def _reply(self, run: Run, tensors: Sequence[Tensor]) -> InferResponse:
        """The answer with these outputs; raises LostError."""
        told = run.asked.told(tensors)
        head = self.heads.reply(run.asked, told, run.entry.request.parameters)
        response = InferResponse(0, head, [tensor.payload for tensor in told])
        if any(isinstance(each, SharedMemory) for each in response.payloads):
            self._lend(run, response, tensors)
        return response

    def _tell(self, run: Run, response: InferResponse) -> None:
        """An answer that is not the last."""
        response.more = True
        self._count(run, response)
        tell(run.entry, response)

    def _finish(self, run: Run, replies: Sequence[Sequence[Tensor]]) -> None:
        """The last of them ends the request; without any, nothing more than its end is told."""
        for reply in replies[:-1]:
            self._tell(run, self._reply(run, reply))
        response = self._reply(run, replies[-1]) if replies else InferResponse(0)
        entry = run.entry
        revision = b"" if run.stale else self.revision
        epoch_ms = time.time_ns() // 1_000_000
        execution = Execution(run.started_ns, _now_ns(), epoch_ms, *run.compute_ns, revision)
        entry.execution = execution
        entry.revision = revision
        self.statistics.record_batch(run.batch, execution)
        if self.config.decoupled:
            if not run.told:
                # Says what kind of model this is: its answers wait for no other request's.
                tell(entry, InferResponse(0, more=True))
            self._count(run, response)
        self._close(entry, response)

    def _count(self, run: Run, response: InferResponse) -> None:
        now_ns = _now_ns()
        self.statistics.record_response(run.told, response, now_ns - run.told_ns)
        if run.entry.trace is not None:
            run.entry.trace.responded(response, now_ns)
        run.told += 1
        run.told_ns = now_ns

    # ---- the pace of steps that answer many times

    def _keep_pace(self, run: Run, call: Call[Tensor]) -> None:
        """A call has answered. One that the steps behind it cannot follow waits for them."""
        for each in (call, *call.above()):
            if each.below >= self._most_calls and each not in run.held:
                run.held.add(each)
            elif each in run.held and each.below <= self._most_calls // 2:
                run.held.discard(each)
            elif not run.paused or each is not call:
                continue
            self._set_pace(run, each)

    def _set_pace(self, run: Run, call: Call[Tensor]) -> None:
        if call in run.calls:
            form, entry = run.calls[call]
            if isinstance(form.model, DecoupledVersion | EnsembleVersion):
                form.model.set_flow(entry, paused=run.paused or call in run.held)

    def _give_up(self, run: Run, code: int, message: str) -> None:
        error = error_of(code, f"in ensemble '{self.name}', {message}", accepted=True)
        self._fail(run.entry, error, _now_ns(), CANCELED if code in _CANCELS else OTHER)

    def _close(self, entry: Entry, response: InferResponse | None) -> None:
        run = self._runs.pop(entry, None)
        if run is not None:
            self._drop(run)
        super()._close(entry, response)

    def _drop(self, run: Run) -> None:
        """Nobody wants to know any more what comes of it."""
        if run.calls:
            # Later: a model may be about to answer several of them right now.
            self._loop.call_soon(_cancel, list(run.calls.values()))
            # They know of the run, by which all of the request would stay in memory.
            run.calls.clear()
        if run.loans:
            # Steps under way may be reading them.
            self.shared_tensors.give_back({loan.segment_name for loan in run.loans}, discard=True)

    # ---- tensors in executors' memory

    def _borrow(self, run: Run, tensors: Iterable[Tensor]) -> None:
        """An answer's tensors lie in a segment, which is to be given back after the last use."""
        for tensor in tensors:
            loan = tensor.loan
            if loan is not None and loan not in run.loans:
                run.loans.add(loan)
                if not loan.uses:
                    self._end(run, loan)

    def _let_go(self, run: Run, tensors: Iterable[Tensor]) -> None:
        """A step has read these."""
        for tensor in tensors:
            loan = tensor.loan
            if loan is not None:
                loan.uses -= 1
                if not loan.uses:
                    self._end(run, loan)

    def _end(self, run: Run, loan: Loan) -> None:
        run.loans.discard(loan)
        self.shared_tensors.give_back((loan.segment_name,))

    def _lend(self, run: Run, response: InferResponse, reply: Sequence[Tensor]) -> None:
        """Hand on what lies in shared memory: as it is, if all of it is in one segment.

        Raises:
            LostError: the executor that it came from is gone.
        """
        loans = {tensor.loan for tensor in reply}
        loan = loans.pop()
        if loan is not None and not loans and run.entry.passage is None:
            # From here on it is the gateway that gives it back.
            run.loans.discard(loan)
            response.segment_name = loan.segment_name
            return
        response.payloads = inline(response.payloads)
        self._let_go(run, reply)

    def _has_lost(self, run: Run, tensors: Iterable[Tensor]) -> bool:
        """Whether a step failed for what was lost with an executor, and may be taken again."""
        if run.told or run.entry.retries >= self._limits.max_retries:
            return False
        loans = {tensor.loan for tensor in tensors}
        return any(loan is not None and not exists(loan.segment_name) for loan in loans)

    def _begin_again(self, run: Run) -> None:
        entry = run.entry
        now_ns = _now_ns()
        if run.told or entry.retries >= self._limits.max_retries:
            self._give_up(run, Unavailable.code, "an executor was lost with its answer")
            return
        _log.warning("tensors were lost with an executor: their ensemble begins again")
        entry.retries += 1
        self.statistics.retries += 1
        self._drop(run)
        self._begin(run.batch, now_ns)


def _cancel(calls: Iterable[tuple[StepForm, Entry]]) -> None:
    for form, entry in calls:
        form.model.cancel(entry)
