"""A model instance: a thread that loads the model, warms it up, and serves its tenures.

Without a scheduler, it keeps the model loaded until adopt() brings the next tenure.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from nereid.backends import ModelLostError, capabilities_of
from nereid.core.errors import INTERNAL_MESSAGE, Internal, InvalidArgument, NereidError
from nereid.core.wire.messages import ErrorStatus, error_status_of
from nereid.model_config.padding import PADDING
from nereid_executor.backends.native.backend import confined
from nereid_executor.batch.runner import Runner
from nereid_executor.batch.warmup import warm_up
from nereid_executor.core.model_files import read_model_files
from nereid_executor.instances.instance_mesh import InstanceMesh
from nereid_executor.instances.instance_state import TRANSITIONS, InstanceState
from nereid_executor.instances.instance_streams import InstanceStreams
from nereid_executor.instances.tenure import Tenure, Tenures

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nereid.backends import InstanceSpec, Model, ReadinessReporter, RequestModel
    from nereid_executor.core.model_files import ModelFiles
    from nereid_executor.instances.instance_context import InstanceContext

_log = logging.getLogger(__name__)


class Instance:
    """One loaded copy of a model version. start(), adopt() and stop() are thread-safe."""

    def __init__(self, spec: InstanceSpec, context: InstanceContext, tenure: Tenure) -> None:
        self._mesh = InstanceMesh(tenure)
        self._context = context
        self._tenures = Tenures(tenure)
        self.spec = replace(
            spec, number=tenure.number, mesh=self._mesh, is_wanted=self._tenures.is_wanted
        )
        # The files from which the model was loaded; `None` if they cannot be read.
        self.files: ModelFiles | None = None
        # True once the model has been loaded and warmed up.
        self.loaded = False
        # Key: a device. Value: bytes of memory that the load took.
        self.memory: dict[str, int] = {}
        self._state = InstanceState.LOADING
        # The streams of the loaded model.
        self._streams: InstanceStreams | None = None
        # The RequestModel while it is warmed up.
        self._warming_up: RequestModel | None = None
        self._readiness: ReadinessReporter | None = None
        self._earlier_batches = 0
        timeline = context.timeline
        self._executions = None if timeline is None else timeline.executions(self.spec)
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
        return self._earlier_batches + (0 if self._streams is None else self._streams.completed)

    @property
    def has_states(self) -> bool:
        """True if the scheduler moves states of sequences to other instances before an unload."""
        return self._streams is not None and self._streams.runner.has_states

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
        tenure, streams = self._tenures.current, self._streams
        if abandon and not tenure.abandoned.is_set():
            tenure.abandoned.set()
            if tenure.lender is not None:
                tenure.lender.close()
            if streams is not None and streams.direct is not None:
                self._context.recent_runs.begin(self, streams.direct.running_requests())
        if not keep:
            self._tenures.set_last()
            if (model := self._warming_up) is not None:
                # The warm-up may take any length of time, and nobody needs it any more.
                model.terminate()
        tenure.stopping.set()
        if streams is not None:
            streams.stop(abandon=abandon)

    def withdraw(self, batch: int) -> bool:
        """Withdraw a batch; return False if it has begun, or may begin. Thread-safe."""
        return self._streams is not None and self._streams.withdraw(batch)

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
        if self._executions is not None:
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
            with self._context.load_meter.measuring(spec.gpu, self._load_key()) as measurement:
                config = spec.config
                backend = self._context.backends.load_backend(config.backend, config.runtime)
                model = confined(backend, config, spec.version_path).load(spec)
                capabilities = capabilities_of(model)
                self.memory = measurement.sizes(capabilities.memory_bytes, self.files)
            # For a moment, a load needs about twice the model's memory.
            self._context.heap_trim.on_freed(self.memory.get("cpu", 0))
        try:
            self._enter(InstanceState.WARMING_UP)
            if capabilities.executes_requests:
                _refuse_padding(spec)
            if capabilities.decides_readiness:
                self._readiness = cast("ReadinessReporter", model)
            runner = self._make_runner(model)
            if self._warm_up(model, runner):
                self._serve_tenures(model, runner)
        finally:
            model.close()

    def _record_event(self, what: str, detail: str = "", *, from_ns: int = 0) -> None:
        timeline = self._context.timeline
        if timeline is not None:
            timeline.recorder.events.record(what, self.spec.name, detail, from_ns=from_ns)

    def _load_key(self) -> Hashable:
        """Return a key that equal loads share: the same files, configuration and device."""
        if self.files is None:
            return None
        config = self.spec.config.SerializeToString(deterministic=True)
        return str(self.spec.version_path), self.spec.gpu, config, self.files.version

    def _make_runner(self, model: Model | RequestModel) -> Runner:
        context = self._context
        return Runner(
            self.spec,
            model,
            view=context.shared_tensors.view,
            tracer=context.tracer,
            recent_runs=context.recent_runs,
            executions=self._executions,
            on_freed=context.heap_trim.on_freed,
            ranges=context.ranges,
        )

    def _warm_up(self, model: Model | RequestModel, runner: Runner) -> bool:
        spec, turns = self.spec, self._context.warmup_turns
        if capabilities_of(model).executes_requests:
            self._warming_up = cast("RequestModel", model)
        try:
            path = spec.version_path.parent
            if not warm_up(spec.config, path, runner.execute_warmup, self._tenures, turns):
                return False
        except ModelLostError as error:
            # If stop() has ended the warm-up, the error is not reported.
            raise Internal(f"it failed on its warm-up: {error}") from error
        finally:
            self._warming_up = None
        self.loaded = True
        self._record_event("load", from_ns=self._loading_since_ns)
        self._tenures.current.callbacks.on_loaded()
        return True

    def _serve_tenures(self, model: Model | RequestModel, runner: Runner) -> None:
        self._streams = streams = InstanceStreams(
            self.spec, model, runner, self._context, self.memory, self._enter
        )
        tenure: Tenure | None = self._tenures.current
        while tenure is not None:
            streams.begin_tenure(tenure)
            if not self._serve_tenure(model, streams, tenure):
                return
            tenure = self._await_tenure(tenure)

    def _serve_tenure(
        self, model: Model | RequestModel, streams: InstanceStreams, tenure: Tenure
    ) -> bool:
        """Serve a tenure to its end; return False if the model cannot serve another one."""
        runner = streams.runner
        decoupled = self.spec.config.model_transaction_policy.decoupled
        while True:
            try:
                streams.serve(tenure)
            except ModelLostError as error:
                _log.warning("instance %s: %s; its model is restarted", self.spec.name, error)
                # The scheduler sends nothing until the model has been restarted.
                if not cast("RequestModel", model).restart(tenure.stopping):
                    return False
            else:
                if not tenure.abandoned.is_set() or decoupled:
                    return True
                # Otherwise the model still executes a batch for which nobody waits any more.
                return runner.finish_batches(self._context.times.abandoned_s)
            finally:
                runner.forget_runs()

    def _await_tenure(self, last: Tenure) -> Tenure | None:
        self._context.recent_runs.abandon(self)
        if not self._tenures.is_last:
            self._enter(InstanceState.KEPT)
            last.callbacks.on_kept(self)
        tenure = self._tenures.wait_after(last)
        if tenure is None:
            return None
        self._earlier_batches = self.batches
        self._mesh.follow(tenure)
        return tenure


def _refuse_padding(spec: InstanceSpec) -> None:
    if PADDING in spec.config.parameters:
        raise InvalidArgument(
            f"unable to load model '{spec.config.name}', parameter '{PADDING}' is not supported by "
            f"backend '{spec.config.backend}', whose models execute requests one by one"
        )
