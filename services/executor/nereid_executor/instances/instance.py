"""A model instance: a thread that loads the model, warms it up, and serves the instance's stream.

Without a scheduler, it keeps the model loaded until adopt() brings the next tenure.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.message import DecodeError

from nereid.backends import ModelLostError, capabilities_of
from nereid.config.recovery import DEFAULT_TIMES
from nereid.core.errors import (
    INTERNAL_MESSAGE,
    Internal,
    InvalidArgument,
    NereidError,
    ProtocolError,
    Unavailable,
)
from nereid.core.methods import (
    CONTROLS_KEY,
    CRASH_REPORTS_KEY,
    EXECUTE_PATH,
    EXECUTOR_KEY,
    INSTANCE_KEY,
    MEMORY_KEY,
    READINESS_KEY,
    STATES_KEY,
    WITHDRAWALS_KEY,
)
from nereid.core.wire.messages import ErrorStatus, error_status_of
from nereid.model_config.padding import PADDING
from nereid.rpc import BlockingStream, RpcError, Status
from nereid.rpc.net.backoff import Backoff, BackoffOptions
from nereid_executor.backends.direct_serving import DirectServing, StreamContext
from nereid_executor.batch.batch_runner import BatchRunner
from nereid_executor.batch.batch_serving import serve_batches
from nereid_executor.batch.request_runner import RequestRunner
from nereid_executor.batch.timeline import NO_TIMELINE
from nereid_executor.batch.warmup import WarmupTurns, warm_up
from nereid_executor.core.heap import HeapTrim
from nereid_executor.core.load_memory import LoadMeter, write_sizes
from nereid_executor.core.model_files import read_model_files
from nereid_executor.core.recent_runs import RecentRuns
from nereid_executor.instances.instance_mesh import InstanceMesh
from nereid_executor.instances.instance_state import TRANSITIONS, InstanceState
from nereid_executor.instances.tenure import Tenure, Tenures

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from nereid.backends import InstanceSpec, Model, ReadinessReporter, RequestModel
    from nereid.config.recovery import RecoveryTimes
    from nereid.observability.tracing import Tracer
    from nereid_executor.backends.registry import BackendRegistry
    from nereid_executor.batch.lifecycle.received_batches import ReceivedBatches
    from nereid_executor.batch.timeline import ExecutorTimeline
    from nereid_executor.batch.warmup import WarmupBatch
    from nereid_executor.core.model_files import ModelFiles
    from nereid_executor.core.nvtx_ranges import NvtxRanges
    from nereid_executor.core.shared_tensors import SharedTensors
    from nereid_executor.instances.load_slots import LoadSlots

_log = logging.getLogger(__name__)

# Statuses that end the instance. After any other status it connects again, since the scheduler may
# still want it.
REFUSALS: Final = frozenset(
    {
        Status.INVALID_ARGUMENT,
        Status.NOT_FOUND,
        Status.ALREADY_EXISTS,
        Status.PERMISSION_DENIED,
        Status.FAILED_PRECONDITION,
        Status.UNIMPLEMENTED,
        Status.UNAUTHENTICATED,
    }
)


@dataclass(frozen=True)
class InstanceContext:
    """Objects that all instances of an executor share."""

    backends: BackendRegistry
    # An instance holds a slot while it loads its model.
    load_slots: LoadSlots
    shared_tensors: SharedTensors
    # Value of EXECUTOR_KEY in the metadata of all streams of this process.
    process: str = field(default_factory=lambda: secrets.token_hex(16))
    # Takes a method, and returns metadata that proves the executor's identity; called per stream.
    credentials: Callable[[str], Iterable[tuple[str, str | bytes]]] | None = None
    # `None` if nothing is traced.
    tracer: Tracer | None = None
    times: RecoveryTimes = DEFAULT_TIMES
    recent_runs: RecentRuns = field(default_factory=RecentRuns)
    load_meter: LoadMeter = field(default_factory=LoadMeter)
    heap_trim: HeapTrim = field(default_factory=HeapTrim)
    warmup_turns: WarmupTurns = field(default_factory=WarmupTurns)
    timeline: ExecutorTimeline = NO_TIMELINE
    ranges: NvtxRanges | None = None


class Instance:
    """One loaded copy of a model version. start(), adopt() and stop() are thread-safe."""

    def __init__(self, spec: InstanceSpec, context: InstanceContext, tenure: Tenure) -> None:
        self._mesh = InstanceMesh(tenure)
        self._context = context
        self._tenures = Tenures(tenure)
        self.spec = replace(
            spec, number=tenure.number, mesh=self._mesh, is_wanted=self._tenures.is_wanted
        )
        # The tenure that the thread serves now, or served last.
        self._serving = tenure
        # The files from which the model was loaded; `None` if they cannot be read.
        self.files: ModelFiles | None = None
        # True once the model has been loaded and warmed up.
        self.loaded = False
        # Key: a device. Value: bytes of memory that the load took.
        self.memory: dict[str, int] = {}
        self._state = InstanceState.LOADING
        self._stream: BlockingStream | None = None
        # `None` unless the model is a RequestModel.
        self._requests: RequestRunner | None = None
        # The RequestModel while it is warmed up.
        self._warming_up: RequestModel | None = None
        self._readiness: ReadinessReporter | None = None
        # Batches of this tenure's streams, except for streams that the model serves itself.
        self._received: ReceivedBatches[Any] | None = None
        # The model, while it serves the stream itself.
        self._direct: DirectServing | None = None
        # How many streams models have served themselves. The last of them has this number.
        self._direct_streams = 0
        # If true, the scheduler moves states of sequences to other instances before an unload.
        self.has_states = False
        self._earlier_batches = 0
        self._executions = context.timeline.executions(self.spec)
        # Monotonic time at which the load began.
        self._loading_since_ns = 0
        self._thread = threading.Thread(target=self._run, name=f"instance-{spec.name}", daemon=True)

    @property
    def version(self) -> tuple[str, int]:
        """Name and version of the instance's model."""
        return self.spec.config.name, self.spec.version

    @property
    def batches(self) -> int:
        """Number of batches that the instance has completed."""
        completed = 0 if self._received is None else self._received.completed
        if self._direct is not None:
            completed = max(completed, self._direct.last_batch_begun)
        return self._earlier_batches + completed

    def start(self) -> None:
        """Start the thread, which loads the model."""
        self._thread.start()

    def adopt(self, tenure: Tenure) -> bool:
        """Serve this tenure after the previous, stopped one; return False if the instance ends."""
        return self._tenures.add(tenure)

    def stop(self, *, abandon: bool = False, keep: bool = False) -> None:
        """End the tenure after the current batch. End the instance too, unless it is kept.

        abandon: the batch's responses can no longer be delivered.
        """
        tenure = self._tenures.current
        if abandon and not tenure.abandoned.is_set():
            tenure.abandoned.set()
            if tenure.lender is not None:
                tenure.lender.close()
            if self._direct is not None:
                self._context.recent_runs.begin(self, self._direct.running_requests())
        if not keep:
            self._tenures.set_last()
            if (model := self._warming_up) is not None:
                # The warm-up may take any length of time, and nobody needs it any more.
                model.terminate()
        tenure.stopping.set()
        if self._direct is not None:
            self._direct.wake()
        stream = self._stream
        # A thread with a batch closes the stream after its response. A batch that arrives at this
        # moment is lost with the stream, and runs elsewhere. If the scheduler has vanished, writing
        # the response could block for minutes.
        busy = self._received is not None and self._received.busy
        if stream is not None and (abandon or not busy):
            stream.cut()

    def withdraw(self, batch: int) -> bool:
        """Withdraw a batch; return False if it has begun, or may begin. Thread-safe."""
        # A RequestRunner reads batches as they arrive, so it can give none back. The scheduler
        # knows this, since the metadata has no WITHDRAWALS_KEY.
        return not self._requests and self._received is not None and self._received.withdraw(batch)

    def query_readiness(self, on_response: Callable[[bool | None], None]) -> None:
        """Ask the model whether it is ready. Thread-safe. Some models never respond."""
        if self._readiness is None:
            on_response(False)
        else:
            self._readiness.query_readiness(on_response)

    def _enter(self, state: InstanceState) -> None:
        assert state in TRANSITIONS[self._state], f"{self._state} -> {state}"
        self._state = state

    def _run(self) -> None:
        error_status: ErrorStatus | None = None
        try:
            self._load_and_serve()
        except NereidError as error:
            if self.loaded or self._tenures.is_wanted():
                error_status = error_status_of(error)
        except Exception:
            _log.exception("instance %s failed while %s", self.spec.name, self._state.value)
            error_status = error_status_of(Internal(INTERNAL_MESSAGE))
        if error_status is not None:
            # The scheduler logs why a model cannot be loaded, once for all of its instances.
            level = logging.DEBUG if self._state is InstanceState.LOADING else logging.WARNING
            _log.log(
                level,
                "instance %s ended while %s: %s",
                self.spec.name,
                self._state.value,
                error_status.message,
            )
        if error_status is None:
            self._record_event("unload")
        else:
            what = "instance lost" if self.loaded else "load failed"
            self._record_event(what, error_status.message)
        self._executions.close()
        # Nothing refers to the model now. Receivers of the report rely on its memory being free.
        self._context.heap_trim.on_freed(self.memory.get("cpu", 0))
        self._state = InstanceState.STOPPED
        self._context.recent_runs.abandon(self)
        self._tenures.close()
        self._tenures.current.callbacks.on_ended(self, error_status)

    def _load_and_serve(self) -> None:
        spec = self.spec
        self.files = read_model_files(spec.version_path)
        with self._context.load_slots.hold(spec.config.name):
            if self._tenures.is_last:
                return
            self._loading_since_ns = time.monotonic_ns()
            with self._context.load_meter.measuring(spec.gpu, self._load_key()) as growth:
                model = self._context.backends.load_backend(spec.config.backend).load(spec)
                capabilities = capabilities_of(model)
                self.memory = growth.sizes(capabilities.memory_bytes, self.files)
            # For a moment, a load needs about twice the model's memory.
            self._context.heap_trim.on_freed(self.memory.get("cpu", 0))
        try:
            self._enter(InstanceState.WARMING_UP)
            if capabilities.executes_requests:
                _refuse_padding(spec)
                if capabilities.decides_readiness:
                    self._readiness = cast("ReadinessReporter", model)
                self._serve_requests(cast("RequestModel", model))
            else:
                self._serve_batches(cast("Model", model))
        finally:
            model.close()

    def _record_event(self, what: str, detail: str = "", *, from_ns: int = 0) -> None:
        self._context.timeline.record_event(what, self.spec.name, detail, from_ns=from_ns)

    def _load_key(self) -> Hashable:
        """Return a key that equal loads share: the same files, configuration and device."""
        if self.files is None:
            return None
        config = self.spec.config.SerializeToString(deterministic=True)
        return str(self.spec.version_path), self.spec.gpu, config, self.files.version

    def _serve_batches(self, model: Model) -> None:
        # No scheduler would release the warm-up's responses, so it does not use shared memory.
        if not self._warm_up(BatchRunner(self.spec, model).execute_warmup):
            return
        tenure: Tenure | None = self._tenures.current
        while tenure is not None:
            # The tenure's scheduler knows nothing of earlier sequences or withdrawn batches.
            runner = self._make_runner(model, tenure)
            self._serve_streams(tenure, partial(self._serve_batch_stream, runner))
            tenure = self._await_tenure(tenure)

    def _make_runner(self, model: Model, tenure: Tenure) -> BatchRunner:
        context = self._context
        options = (context.tracer, context.shared_tensors.view, tenure.lender)
        runner = BatchRunner(
            *(self.spec, model, *options),
            recent_runs=context.recent_runs,
            on_freed=context.heap_trim.on_freed,
            executions=self._executions,
            ranges=context.ranges,
        )
        self.has_states = runner.has_states
        self._received = runner.received
        return runner

    def _serve_requests(self, model: RequestModel) -> None:
        decoupled = self.spec.config.model_transaction_policy.decoupled
        self._requests = runner = RequestRunner(
            self.spec,
            model,
            self._context.tracer,
            self._context.recent_runs,
            executions=self._executions,
        )
        self._warming_up = model
        try:
            if not self._warm_up(runner.execute_warmup):
                return
        except ModelLostError as error:
            # If stop() has ended the warm-up, the error is not reported.
            raise Internal(f"it failed on its warm-up: {error}") from error
        finally:
            self._warming_up = None
        self.has_states = runner.has_states
        self._received = runner.received
        tenure: Tenure | None = self._tenures.current
        while tenure is not None:
            runner.writer.lender = tenure.lender
            try:
                serve_stream = partial(self._serve_request_stream, model, runner)
                self._serve_streams(tenure, serve_stream)
                if tenure.abandoned.is_set() and not decoupled:
                    runner.finish_batches(self._context.times.abandoned_s)
                    # The model still executes a batch for which nobody waits any more.
                    if runner.received.executing:
                        return
            except ModelLostError:
                # The scheduler sends nothing until the model has been restarted.
                if not model.restart(tenure.stopping):
                    return
                continue
            finally:
                runner.forget_runs()
            runner.forget_sequences()
            tenure = self._await_tenure(tenure)

    def _warm_up(self, execute: Callable[[WarmupBatch], bytes]) -> bool:
        turns = self._context.warmup_turns
        path = self.spec.version_path.parent
        if not warm_up(self.spec.config, path, execute, self._tenures, turns):
            return False
        self.loaded = True
        self._record_event("load", from_ns=self._loading_since_ns)
        self._tenures.current.callbacks.on_loaded()
        return True

    def _await_tenure(self, last: Tenure) -> Tenure | None:
        self._context.recent_runs.abandon(self)
        if not self._tenures.is_last:
            self._enter(InstanceState.KEPT)
            last.callbacks.on_kept(self)
        tenure = self._tenures.wait_after(last)
        if tenure is None:
            return None
        self._earlier_batches = self.batches
        if self._received is not None:
            self._received.begin_session()
        if self._direct is not None:
            self._direct.begin_tenure()
        self._mesh.follow(tenure)
        return tenure

    def _serve_streams(self, tenure: Tenure, serve_stream: Callable[[], None]) -> None:
        self._serving, stopping, lender = tenure, tenure.stopping, tenure.lender
        longest_pause_s = self._context.times.longest_dial_pause_s
        # Pauses have jitter, since many instances may lose their streams at the same time.
        backoff = Backoff(BackoffOptions(largest_s=longest_pause_s))
        while not stopping.is_set():
            self._enter(InstanceState.CONNECTING)
            began = time.monotonic()
            try:
                try:
                    serve_stream()
                finally:
                    if lender is not None and not stopping.is_set():
                        lender.discard_lent()
                # After an end without an error, a command will follow on the Join stream.
                stopping.wait()
            except RpcError as error:
                if stopping.is_set():
                    return
                if error.status in REFUSALS:
                    raise Unavailable(
                        f"the scheduler refused the instance: {error.message}"
                    ) from error
                _log.debug("instance %s lost its stream: %s", self.spec.name, error.message)
            except (ProtocolError, DecodeError) as error:
                _log.error(
                    "the scheduler broke the protocol with instance %s; connecting anew: %s",
                    self.spec.name,
                    error,
                )
            if time.monotonic() - began > longest_pause_s:
                backoff.succeeded()
            stopping.wait(backoff.next_delay_s())

    def _serve_batch_stream(self, runner: BatchRunner) -> None:
        with closing(self._connect()) as stream:
            serve_batches(stream, runner, self._serving.stopping.is_set)

    def _serve_request_stream(self, model: RequestModel, runner: RequestRunner) -> None:
        plaintext = self._serving.endpoint.tls is None
        if plaintext and isinstance(model, DirectServing) and model.can_serve_stream:
            self._enter(InstanceState.SERVING)
            self._direct = model
            model.serve_stream(self._stream_context())
            if model.can_serve_stream or self._serving.stopping.is_set():
                return
            self._direct = None
            self._enter(InstanceState.CONNECTING)
        with closing(self._connect()) as stream:
            runner.serve(stream, self._serving.stopping.is_set)

    def _connect(self) -> BlockingStream:
        endpoint = self._serving.endpoint
        self._stream = stream = BlockingStream(
            endpoint.address,
            EXECUTE_PATH,
            metadata=self._metadata(),
            timeout_s=self._context.times.connect_s,
            tls=endpoint.tls,
            # A RequestRunner itself waits for the stream's socket.
            background_keepalive=self._requests is None,
        )
        self._enter(InstanceState.SERVING)
        return stream

    def _stream_context(self) -> StreamContext:
        self._direct_streams += 1
        number = self._direct_streams
        metadata = [*self._metadata(), (CRASH_REPORTS_KEY, str(number))]
        tenure, context = self._serving, self._context
        return StreamContext(
            number=number,
            instance_number=tenure.number,
            address=tenure.endpoint.address,
            metadata=metadata,
            link_domain=tenure.endpoint.link_domain,
            credentials=context.credentials,
            stopping=tenure.stopping,
            abandoned=tenure.abandoned,
            times=context.times,
            on_model_lost=tenure.callbacks.on_model_lost,
            recent_runs=context.recent_runs,
            lender=tenure.lender,
            tracer=context.tracer,
        )

    def _metadata(self) -> list[tuple[str, str | bytes]]:
        context = self._context
        metadata: list[tuple[str, str | bytes]] = [
            (INSTANCE_KEY, str(self._serving.number)),
            (EXECUTOR_KEY, context.process),
        ]
        if context.credentials is not None:
            metadata += context.credentials(EXECUTE_PATH)
        if self._requests is not None:
            metadata.append((CONTROLS_KEY, "1"))
        if self._readiness is not None and self._readiness.reports_readiness:
            metadata.append((READINESS_KEY, "1"))
        if self._requests is None:
            metadata.append((WITHDRAWALS_KEY, "1"))
        if self.has_states:
            metadata.append((STATES_KEY, "1"))
        metadata.append((MEMORY_KEY, write_sizes(self.memory)))
        return metadata


def _refuse_padding(spec: InstanceSpec) -> None:
    if PADDING in spec.config.parameters:
        raise InvalidArgument(
            f"unable to load model '{spec.config.name}', parameter '{PADDING}' is not supported by "
            f"backend '{spec.config.backend}', whose models execute requests one by one"
        )
