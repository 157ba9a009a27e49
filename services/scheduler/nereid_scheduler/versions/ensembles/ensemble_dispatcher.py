"""Dispatcher of an ensemble, which makes requests to the models of its steps.

Steps wait in their models' own queues, so that they share batches with other requests. Tensors are
passed on unread. Each request has a run:

    state     event                                            next state
    running   a step responds, and the graph names actions     running: steps are called, and a
                                                               decoupled ensemble responds
    running   the last call has ended, with a response         finished
    running   the last call has ended without a response       failed as a deadlock, or finished
                                                               with an empty end if decoupled
    running   a step fails                                     failed
    running   tensors are lost with an executor                a new run; failed if a response was
                                                               sent, retries are used up, or steps
                                                               run at most once
    running   the client cancels                               ended

At the end of each run, open calls are cancelled and segments are released.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import (
    INTERNAL_MESSAGE,
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NereidError,
    Unavailable,
    error_from_code,
)
from nereid.core.wire.messages import InferRequest, InferResponse
from nereid.observability.metrics import CANCELED, OTHER
from nereid.shm.mappings import SegmentLostError
from nereid.shm.reference import SharedMemory
from nereid_scheduler.batching.batcher import make_batcher
from nereid_scheduler.batching.queues import request_prefix
from nereid_scheduler.core.models.dependencies import step_request_id
from nereid_scheduler.core.requests.entry import about
from nereid_scheduler.core.requests.execution import Execution
from nereid_scheduler.versions.dispatcher import Dispatcher
from nereid_scheduler.versions.ensembles.ensemble_run import EnsembleRun
from nereid_scheduler.versions.ensembles.graphs.graph import NextActions
from nereid_scheduler.versions.ensembles.run_segments import RunSegments, are_lost
from nereid_scheduler.versions.ensembles.step_limits import StepLimits
from nereid_scheduler.versions.ensembles.step_tensors import (
    MAX_HEADS,
    EnsembleHeads,
    StepHeads,
    Tensor,
)
from nereid_scheduler.versions.ensembles.step_times import StepTimes
from nereid_scheduler.versions.ensembles.tensor_rows import TensorRows
from nereid_scheduler.versions.reruns.resent_requests import may_have_run
from nereid_scheduler.versions.waits.nested_calls import NO_NESTED_CALLS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from nereid.model_config import ModelConfig
    from nereid_scheduler.core.requests.entry import Batch, Entry
    from nereid_scheduler.versions.ensembles.graphs.graph import Plan, Step, StepCall
    from nereid_scheduler.versions.model_version import ModelVersion
    from nereid_scheduler.versions.open_requests import OpenRequests
    from nereid_scheduler.versions.steps import Turns
    from nereid_scheduler.versions.version_context import VersionContext
    from nereid_scheduler.versions.waits.nested_calls import NestedCalls

    # Returns the version that runs a step now; raises NereidError if there is none.
    FindModel = Callable[[Step], ModelVersion]
    # Chooses the version for a request's step; raises NereidError if there is none.
    ChooseModel = Callable[[InferRequest], ModelVersion]
    # Returns the choice for a step whose model has weights of traffic; `None` for other steps.
    FindChoice = Callable[[Step], ChooseModel | None]

_log = logging.getLogger(__name__)

_DEADLOCK: Final = (
    "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
)
_TENSORS_LOST: Final = "an executor was lost before its response was read"
# A decoupled step is paused while this many calls of the same request are open.
_MAX_OPEN_CALLS: Final = 1024
# Each combination of requested outputs counts as another step.
_MAX_STEPS: Final = 4096
_CANCELS: Final = frozenset({Cancelled.code, DeadlineExceeded.code})
_now_ns: Final = time.monotonic_ns


class EnsembleDispatcher(Dispatcher):
    """Dispatcher of an ensemble. Its queue is empty at the end of each turn of the event loop."""

    def __init__(  # noqa: PLR0913 - what every dispatcher gets, and by keyword what ensembles need
        self,
        config: ModelConfig,
        context: VersionContext,
        requests: OpenRequests,
        turns: Turns,
        *,
        find_model: FindModel,
        find_choice: FindChoice = lambda _: None,
        nested_calls: NestedCalls = NO_NESTED_CALLS,
        labels: Mapping[str, tuple[str, ...]] | None = None,
        max_steps: int = _MAX_STEPS,
        max_heads: int = MAX_HEADS,
    ) -> None:
        """Create a dispatcher without runs. labels: of the classes of an output."""
        self._requests = requests
        self._records = requests.records
        self._segments = RunSegments(requests.segment_owners)
        self._turns = turns
        self._name, number = requests.named
        self._config = config
        self._decoupled = config.decoupled
        self._max_retries = context.limits.max_retries
        batcher = make_batcher(config, max_pending=context.limits.max_queue_size)
        super().__init__(batcher, calls_other_models=True)
        requests.notify_ended(self._end_run)
        self._find_model = find_model
        self._find_choice = find_choice
        self._nested_calls = nested_calls
        self._heads = EnsembleHeads(config, number, labels or {}, max_heads)
        self._max_heads = max_heads
        self._steps: BoundedCache[Step, StepHeads] = BoundedCache(max_steps)
        # Steps whose model has weights of traffic: their choices, and the heads by version.
        self._choices: BoundedCache[Step, ChooseModel] = BoundedCache(max_steps)
        self._chosen: BoundedCache[tuple[Step, ModelVersion], StepHeads] = BoundedCache(max_steps)
        self._runs: dict[Entry, EnsembleRun] = {}
        # By the step's index. A step that no request has needed has none.
        self.step_times: dict[int, StepTimes] = {}
        configured = config.proto.ensemble_scheduling.max_inflight_requests
        self._max_open_calls = configured or _MAX_OPEN_CALLS
        self._step_limits = StepLimits(configured)

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """Pause the steps of a client that cannot keep up with responses, or resume them."""
        run = self._runs.get(entry)
        if run is not None:
            run.set_paused(paused=paused)

    def forget_models(self) -> None:
        """Forget the versions that run the steps, since they may have changed."""
        self._steps.clear()
        self._choices.clear()
        self._chosen.clear()

    def cancel_execution(self, entry: Entry) -> str:
        """Return the reason to count a request whose steps run as failed."""
        return CANCELED if entry in self._runs else ""

    def is_blocked(self, entry: Entry) -> bool:  # noqa: ARG002 - of Dispatcher
        """Return False, as a step waits in another version's queue."""
        return False

    def set_config(self, config: ModelConfig) -> None:
        """Set a configuration in which the ensemble is decoupled, or is not."""
        self._config = config
        self._decoupled = config.decoupled

    def close(self) -> None:
        """Do nothing, as there is no timer."""

    def skipped_steps(self) -> dict[int, int]:
        """Return how often each step was skipped, by its index."""
        return {index: each.skipped for index, each in self.step_times.items() if each.skipped}

    # ---- from the queue to the steps

    @property
    def pending(self) -> int:
        """Number of requests whose first steps were not called yet."""
        return self.batcher.pending

    @property
    def instances(self) -> tuple[int, int]:
        """No instances: an ensemble has none."""
        return 0, 0

    @property
    def sequences(self) -> tuple[int, int] | None:
        """No sequences: the models of its steps have them."""
        return None

    def has_sequence(self, key: Hashable) -> bool:  # noqa: ARG002 - of Dispatcher
        """Return False: the models of its steps have the sequences."""
        return False

    def end_sequence(self, key: Hashable) -> None:
        """End a sequence of copies at the models of the steps."""
        for heads in (*self._steps.values(), *self._chosen.values()):
            heads.model.dispatcher.end_sequence(key)

    def on_queued(self) -> None:
        """See to it that a request that was just queued gets its turn."""
        self._turns.wake()

    def dispatch(self, now_ns: int) -> int | None:
        """Submit the steps that may go now, begin all queued requests; return when to go on."""
        while (waiting := self._step_limits.next_call()) is not None:
            run, call = waiting
            actions: NextActions[Tensor] = NextActions()
            actions.calls.append(call)
            self._advance(run, partial(_unchanged, actions))
        while (batch := self.batcher.next_batch(now_ns, 1)) is not None:
            self._start_run(batch, now_ns)
        return self.batcher.wake_at_ns(now_ns)

    def _start_run(self, batch: Batch, now_ns: int) -> None:
        entry = batch.entries[0]
        try:
            head = self._heads.parse_request(entry.request.head)
        except NereidError as error:
            self._requests.fail_entry(entry, error)
            return
        run = self._runs[entry] = EnsembleRun(batch, head, now_ns, self._rows_of(entry, head.plan))
        inputs = head.input_tensors(entry.request.payloads)
        self._advance(run, partial(run.graph.start, inputs))

    def _rows_of(self, entry: Entry, plan: Plan) -> TensorRows | None:
        if not plan.conditioned:
            return None
        config, batch_size = self._config.proto, entry.valid.batch_size
        return TensorRows(config, plan, self._heads.defaults, self._find_model, batch_size)

    def _advance(self, run: EnsembleRun, proceed: Callable[[], NextActions[Tensor]]) -> None:
        try:
            actions = proceed()
            self._record_skips(run, actions.skipped)
            self._segments.release_tensors(run, actions.released)
            for call in actions.calls:
                if not self._step_limits.must_wait(run, call):
                    self._submit_step(run, call)
            if not run.graph.finished:
                for outputs in actions.responses:
                    self._send_partial(run, self._build_response(run, outputs))
            elif run.graph.deadlocked and not self._decoupled:
                text = request_prefix(run.entry.request.request_id) + _DEADLOCK
                self._fail_run(run, InvalidArgument.code, text)
            else:
                self._finish_run(run, actions.responses)
        except SegmentLostError:
            self._restart_run(run)
        except NereidError as error:
            self._fail_run(run, error.code, error.message, error.retry_after_ms)
        except Exception:
            _log.exception(
                "a step of %r cannot be submitted", self._requests, extra=about(run.entry)
            )
            self._fail_run(run, Internal.code, INTERNAL_MESSAGE)

    def _submit_step(self, run: EnsembleRun, call: StepCall[Tensor]) -> None:
        step = call.step
        heads = self._steps.get(step) or self._find_heads(run, step)
        original = run.entry.request
        # A step that may be called several times has no fixed id.
        repeated = self._decoupled or call.is_repeated
        number = 0 if repeated else step_request_id(original.id, step.index)
        parameters = original.parameters
        if run.moved:
            place = run.place_behind(call.tensors.values())
            parameters = {**(parameters or {}), **place.parameters()}
        request = InferRequest(
            number,
            heads.write_request(call.tensors),
            [tensor.payload for tensor in call.tensors.values()],
            original.request_id,
            parameters,
            original.priority,
            original.timeout_us,
            original.deadline,
            run.trace_context,
            caller=original.caller,
            depth=original.depth,
            accepts_many=True,
            sequence_owner=original.sequence_owner,
            wants_timings=original.wants_timings,
            caller_key=original.caller_key,
            is_shadow=original.is_shadow,
            copied_sequence=original.copied_sequence,
            callable_models=original.callable_models,
        )
        if original.wants_timings:
            run.paths[call] = run.path
        on_response = partial(self._on_step_response, run, call)
        entry = heads.model.submit(request, on_response)
        run.calls[call] = heads, entry
        self._step_limits.add_open(call)
        if request.caller:
            # A model that has called the ensemble waits for the ensemble's steps.
            self._nested_calls.add_call(request, entry)

    def _find_heads(self, run: EnsembleRun, step: Step) -> StepHeads:
        head = run.head
        choose = self._choices.get(step) or self._find_choice(step)
        if choose is None:
            model = self._find_model(step)
            heads = StepHeads(step, model, head.plan, head.classes, self._max_heads)
            return self._steps.remember(step, heads)
        self._choices.remember(step, choose)
        model = choose(run.entry.request)
        known = self._chosen.get((step, model))
        if known is not None:
            return known
        heads = StepHeads(step, model, head.plan, head.classes, self._max_heads)
        return self._chosen.remember((step, model), heads)

    def _on_step_response(
        self, run: EnsembleRun, call: StepCall[Tensor], response: InferResponse
    ) -> None:
        if self._runs.get(run.entry) is not run:
            self._segments.drop_response(response)
            return
        heads, entry = run.on_response(call, response)
        if not response.more:
            self._record_step(call.step.index, entry, response)
            self._end_call(call)
        if response.error is not None:
            if self._has_lost_inputs(run, call.tensors.values()):
                self._restart_run(run)
            else:
                error_status = response.error
                self._fail_run(
                    run, error_status.code, error_status.message, error_status.retry_after_ms
                )
            return
        if not response.more:
            run.record_step(entry, heads.model.revision)
            self._segments.release_tensors(
                run, call.tensors.values(), in_use=response.inputs_in_use
            )
        try:
            outputs = _outputs_of(run, heads, entry, response) if response.head else None
        except NereidError as error:
            self._segments.drop_response(response)
            self._fail_run(run, error.code, error.message, error.retry_after_ms)
            return
        if response.segment_name and outputs is not None:
            self._segments.add_leases(run, outputs.values())
        if outputs is not None or not response.more:
            # Without outputs, such a response only announces that several may follow.
            last = not response.more
            self._advance(run, partial(run.graph.on_response, call, outputs, last=last))
        if self._decoupled:
            run.throttle(call, self._max_open_calls)

    def _end_call(self, call: StepCall[Tensor]) -> None:
        if self._step_limits.end(call):
            self._turns.ask()

    def _record_step(self, index: int, entry: Entry, response: InferResponse) -> None:
        failed = response.error is not None
        self._times_of(index).record(entry.received_ns, _now_ns(), failed=failed)

    def _record_skips(self, run: EnsembleRun, steps: Iterable[Step]) -> None:
        for step in steps:
            self._times_of(step.index).skipped += 1
            if run.entry.trace is not None:
                run.entry.trace.add_skipped_step(step.model)

    def _times_of(self, index: int) -> StepTimes:
        times = self.step_times.get(index)
        if times is None:
            times = self.step_times[index] = StepTimes()
        return times

    def _build_response(self, run: EnsembleRun, outputs: Sequence[Tensor | None]) -> InferResponse:
        """Return the response with these outputs; may raise SegmentLostError."""
        tensors = run.head.response_tensors(outputs)
        head = self._heads.write_response(run.head, tensors, run.place_behind(outputs))
        response = InferResponse(0, head, [tensor.payload for tensor in tensors if tensor])
        if any(isinstance(payload, SharedMemory) for payload in response.payloads):
            self._segments.pass_on(run, response, [tensor for tensor in outputs if tensor])
        return response

    def _send_partial(self, run: EnsembleRun, response: InferResponse) -> None:
        response.more = True
        run.record_response(self._records, response, _now_ns())
        run.entry.respond(response)

    def _finish_run(self, run: EnsembleRun, responses: Sequence[Sequence[Tensor | None]]) -> None:
        """Send these responses and end the request. If there are none, send an empty response."""
        for outputs in responses[:-1]:
            self._send_partial(run, self._build_response(run, outputs))
        response = self._build_response(run, responses[-1]) if responses else InferResponse(0)
        entry = run.entry
        revision = b"" if run.stale else self._requests.revision
        epoch_ms = time.time_ns() // 1_000_000
        execution = Execution(run.started_ns, _now_ns(), epoch_ms, *run.compute_ns, revision)
        entry.execution = execution
        entry.revision = revision
        self._records.end_run(run.batch, execution, several=self._decoupled)
        if self._decoupled:
            if not run.responses_sent:
                # An empty response shows that the model is decoupled, so its responses need not
                # wait.
                entry.respond(InferResponse(0, more=True))
            run.record_response(self._records, response, _now_ns())
        if entry.request.wants_timings:
            response.timings = run.timings()
        self._requests.end_entry(entry, response)

    def _fail_run(self, run: EnsembleRun, code: int, message: str, retry_after_ms: int = 0) -> None:
        message = f"in ensemble '{self._name}', {message}"
        error = error_from_code(code, message, accepted=True, retry_after_ms=retry_after_ms)
        timings = run.timings() if run.entry.request.wants_timings else None
        reason = CANCELED if code in _CANCELS else OTHER
        self._requests.fail_entry(run.entry, error, reason, timings)

    def _end_run(self, entry: Entry) -> None:
        run = self._runs.pop(entry, None)
        if run is not None:
            self._cancel_run(run)

    def _cancel_run(self, run: EnsembleRun) -> None:
        self._step_limits.remove_waiting(run)
        open_calls = bool(run.calls)
        if open_calls:
            for call in run.calls:
                self._end_call(call)
            # A model may be in the middle of responding to several of these calls.
            self._turns.call_soon(_cancel_calls, list(run.calls.values()))
            # The calls refer to the run, and would keep the request in memory.
            run.calls.clear()
        self._segments.return_all(run, discard=open_calls)

    def _has_lost_inputs(self, run: EnsembleRun, tensors: Iterable[Tensor]) -> bool:
        """Return whether the inputs of a failed step were lost, and the request may run again."""
        if run.responses_sent or run.entry.retries >= self._max_retries:
            return False
        return are_lost(tensors)

    def _restart_run(self, run: EnsembleRun) -> None:
        entry = run.entry
        now_ns = _now_ns()
        if run.responses_sent or entry.retries >= self._max_retries:
            self._fail_run(run, Unavailable.code, _TENSORS_LOST)
            return
        # The steps of one request are not kept, so check those of all requests.
        steps = (*self._steps.values(), *self._chosen.values())
        if any(heads.model.config.at_most_once for heads in steps):
            error = may_have_run(self._name, _TENSORS_LOST)
            self._fail_run(run, error.code, error.message, error.retry_after_ms)
            return
        _log.warning(
            "tensors were lost with an executor; a request of %r starts again",
            self._requests,
            extra=about(entry),
        )
        self._records.retry(entry)
        self._cancel_run(run)
        self._start_run(run.batch, now_ns)


def _outputs_of(
    run: EnsembleRun, heads: StepHeads, entry: Entry, response: InferResponse
) -> dict[str, Tensor]:
    """Return a step's outputs, with their place in a sequence unless it is the ensemble's."""
    outputs, stated = heads.parse_response(response)
    if stated is None and not run.moved:
        return outputs
    return run.place_outputs(entry, outputs, stated)


def _unchanged(actions: NextActions[Tensor]) -> NextActions[Tensor]:
    return actions


def _cancel_calls(calls: Iterable[tuple[StepHeads, Entry]]) -> None:
    for _, entry in calls:
        entry.cancel()
