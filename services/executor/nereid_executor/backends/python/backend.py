"""The Python backend's module for the executor: describes, loads and runs model.py files."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import time
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format

from nereid.backends import (
    BackendCapabilities,
    BatchUpdate,
    Capabilities,
    InstanceSpec,
    ModelDescription,
    ModelLostError,
    Request,
)
from nereid.core.errors import Internal, InvalidArgument, NotFound
from nereid.model_config import config_json
from nereid.model_config.batching_fields import runs_at_most_once
from nereid.model_config.reshapes import output_reshapes
from nereid.pb import model_config_pb2
from nereid_executor.backends.direct_serving import DirectServing
from nereid_executor.backends.python.messages.request_metadata import (
    KnownSpecs,
    deadline_us,
    inline_tensors,
    meta_of,
    tensors_of,
)
from nereid_executor.backends.python.messages.response_heads import ResponseHeads
from nereid_executor.backends.python.sandbox.policy import sandbox_advice
from nereid_executor.backends.python.supervisor.direct_supervisor import DirectSupervisor
from nereid_executor.backends.python.supervisor.model_calls import ModelCalls
from nereid_executor.backends.python.supervisor.notifications import NotificationHandler
from nereid_executor.backends.python.supervisor.readiness_queries import ReadinessQueries
from nereid_executor.backends.python.supervisor.reported_spans import ReportedSpans
from nereid_executor.backends.python.supervisor.restarts import start_with_retries
from nereid_executor.backends.python.supervisor.visible_config import (
    instance_kind,
    visible_config,
)
from nereid_executor.backends.python.supervisor.worker_process import WorkerProcess
from nereid_executor.backends.python.supervisor.worker_settings import (
    WorkerSettings,
    read_worker_settings,
)
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.core.load_memory import process_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path
    from threading import Event

    from nereid.shm.reference import SharedMemory
    from nereid_executor.backends.direct_serving import StreamContext
    from nereid_executor.backends.python.sandbox.policy import Confinement

_log = logging.getLogger(__name__)

capabilities: Final = BackendCapabilities(runs_model_code=True)

DEFAULT_FILENAME: Final = "model.py"
_HAS_AUTO_COMPLETE: Final = re.compile(rb"\bauto_complete_config\b")
# Fields that auto_complete_config may change.
_COMPLETABLE: Final = (
    "max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy"
)  # fmt: skip

_CONTROL: Final = Struct("<QII")


def uses_gpus() -> bool:
    """Return False: models may use GPUs by themselves, but the executor need not offer any."""
    return False


def describe(config: model_config_pb2.ModelConfig, version_path: Path) -> ModelDescription:
    """Return the configuration as the model's auto_complete_config completes it."""
    return describe_within(config, version_path, None)


def describe_within(
    config: model_config_pb2.ModelConfig, version_path: Path, limit_s: float | None
) -> ModelDescription:
    """Describe as describe() does, but kill a worker that takes longer than limit_s."""
    path = _model_file(config, version_path)
    completed = model_config_pb2.ModelConfig()
    completed.CopyFrom(config)
    if describe_runs_code(config, version_path):
        settings = read_worker_settings(config, version_path.parent, {})
        worker = WorkerProcess(
            settings.python,
            config.name,
            NotificationHandler(
                config.name, config.name, bounded=settings.confinement is not None
            ).on_notification,
            confinement=settings.confinement,
        )
        try:
            worker.wait_for(wire.STARTED, settings.start_s)
            worker.send_json(wire.DESCRIBE, _model_settings(config, path, settings.confinement))
            limits_s = [limit for limit in (settings.initialize_s, limit_s) if limit is not None]
            body = worker.wait_for(wire.DESCRIBED, min(limits_s, default=None))
            described = json.loads(bytes(body))
        except (wire.LostError, wire.SlowError) as error:
            raise Internal(worker.death_reason()) from error
        finally:
            worker.kill()
        _merge_completed(completed, described)
    return ModelDescription((), (), completed)


def describe_runs_code(config: model_config_pb2.ModelConfig, version_path: Path) -> bool:
    """Return whether describe() runs the model's code; raise NereidError if its file is missing."""
    path = _model_file(config, version_path)
    is_complete = bool(config.input) and bool(config.output)
    return not is_complete or _HAS_AUTO_COMPLETE.search(path.read_bytes()) is not None


def load(spec: InstanceSpec) -> PythonModel:
    """Start a worker for this instance and initialise its model; raise NereidError on failure."""
    _model_file(spec.config, spec.version_path)
    settings = read_worker_settings(spec.config, spec.version_path.parent, spec.settings)
    return PythonModel(spec, settings)


def _model_file(config: model_config_pb2.ModelConfig, version_path: Path) -> Path:
    path = version_path / (config.default_model_filename or DEFAULT_FILENAME)
    if not path.is_file():
        raise NotFound(f"Python model file not found in '{path}'")
    return path


def _model_settings(
    config: model_config_pb2.ModelConfig, path: Path, confinement: Confinement | None
) -> dict[str, Any]:
    return {
        "model_config": config_json(visible_config(config)).decode(),
        "version_path": str(path.parent),
        "filename": path.name,
        "decoupled": config.model_transaction_policy.decoupled,
        "iterative": config.sequence_batching.iterative_sequence,
        "verbose": logging.getLogger().isEnabledFor(logging.DEBUG),
        "advice": sandbox_advice(confinement),
    }


def _merge_completed(
    config: model_config_pb2.ModelConfig, described: dict[str, Any] | None
) -> None:
    if described is None:
        return
    fields: dict[str, Any] = {name: described[name] for name in _COMPLETABLE if name in described}
    for name in fields:
        config.ClearField(name)
    try:
        json_format.ParseDict(fields, config, ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise InvalidArgument(
            f"model '{config.name}': auto_complete_config left a configuration that makes no "
            f"sense: {error}"
        ) from error


class PythonModel(DirectServing):
    """A model that runs in a worker process.

    Only the instance's thread calls methods, except for those marked thread-safe.
    """

    def __init__(self, spec: InstanceSpec, settings: WorkerSettings) -> None:
        self._spec = spec
        self._settings = settings
        self._decoupled = spec.config.model_transaction_policy.decoupled
        self.execution_timeout_s = settings.execute_s
        # The worker can serve the stream only in Nereid's own Python. The executor must not have to
        # interrupt slow batches, forward responses during a batch, or keep state between batches.
        sequences = spec.config.sequence_batching
        self._iterative = sequences.iterative_sequence
        self.can_serve_stream = (
            not self._decoupled
            and not self._iterative
            and not sequences.state
            and settings.execute_s is None
            and settings.python == sys.executable
            # Its executor has to know whether a request has begun, and a confined worker could lie.
            and not (settings.confinement is not None and runs_at_most_once(spec.config))
        )
        self._serves_stream = False
        reshapes = output_reshapes(spec.config)
        self._heads = ResponseHeads(spec.config.name, str(spec.version), reshapes)
        self._specs = KnownSpecs(lambda parts: self._send_frame(wire.SPEC, parts))
        # Key: a batch's number and a member's index. Value: the output buffer of that request while
        # the request is in flight.
        self._output_buffers: dict[tuple[int, int], SharedMemory] = {}
        self._notifications = NotificationHandler(
            spec.name, spec.config.name, bounded=settings.confinement is not None
        )
        self._spans = ReportedSpans(
            spec.name,
            spec.config.max_batch_size,
            bounded=settings.confinement is not None,
        )
        self._queries = ReadinessQueries()
        self._worker: WorkerProcess | None = None
        try:
            self._worker = self._start_worker()
        except BaseException:
            self._notifications.remove_metrics()
            raise

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the model, with the present memory use of its worker."""
        memory_bytes = 0 if self._worker is None else process_bytes(self._worker.pid)
        return Capabilities(
            executes_requests=True, decides_readiness=True, memory_bytes=memory_bytes
        )

    def _start_worker(self) -> WorkerProcess:
        """Start a worker and initialise its model. Raise Internal if either fails."""
        spec, settings = self._spec, self._settings
        self._specs.clear()
        self._output_buffers.clear()
        calls = ModelCalls(spec.mesh, spec.number, settings.confinement)
        worker = WorkerProcess(
            settings.python,
            spec.config.name,
            self._on_notification,
            calls,
            serves_stream=self.can_serve_stream,
            threads=spec.threads,
            confinement=settings.confinement,
            name=spec.name,
        )
        try:
            worker.wait_for(wire.STARTED, settings.start_s)
            path = _model_file(spec.config, spec.version_path)
            has_segments = spec.mesh is not None and settings.confinement is None
            memory = spec.mesh.memory if spec.mesh is not None and has_segments else None
            message = _model_settings(spec.config, path, settings.confinement)
            message |= {"args": self._initialize_arguments(), "memory": memory}
            worker.send_json(wire.INITIALIZE, message)
            body = worker.wait_for(wire.INITIALIZED, settings.initialize_s, spec.is_wanted)
            has_is_ready = body == b"true"
        except (wire.LostError, wire.SlowError) as error:
            reason = worker.death_reason()
            worker.kill()
            raise Internal(reason) from error
        except BaseException:
            worker.kill()
            raise
        if has_is_ready:
            self._queries.enable(calls.wake)
        return worker

    def _on_notification(self, kind: int, body: bytearray) -> None:
        if kind == wire.READY:
            self._queries.on_ready(body)
        else:
            self._notifications.on_notification(kind, body)

    def _initialize_arguments(self) -> dict[str, str]:
        spec = self._spec
        return {
            "model_config": config_json(visible_config(spec.config, spec.gpu)).decode(),
            "model_instance_kind": instance_kind(spec),
            "model_instance_name": spec.name,
            "model_instance_device_id": str(spec.gpu or 0),
            "model_repository": str(spec.version_path.parent),
            "model_version": str(spec.version),
            "model_name": spec.config.name,
        }

    def restart(self, stopping: Event) -> bool:
        """Start a new worker, retrying with back-off; return False if `stopping` is set first."""
        self._remove_worker(WorkerProcess.kill)
        self._worker = start_with_retries(
            self._start_worker, self._spec.name, stopping, self._notifications.on_worker_end
        )
        return self._worker is not None

    def terminate(self) -> None:
        """Kill the worker at once. Frames that the worker had sent before can still be read."""
        if self._worker is not None:
            self._worker.terminate()

    def close(self) -> None:
        """Finalise the model, end its worker and remove its metrics."""
        self._remove_worker(WorkerProcess.shut_down)
        self._notifications.remove_metrics()

    def _remove_worker(self, end: Callable[[WorkerProcess], None]) -> None:
        self._queries.disable()
        worker, self._worker = self._worker, None
        if worker is not None:
            end(worker)
        self._notifications.on_worker_end()

    @property
    def reports_readiness(self) -> bool:
        """True if the loaded model has is_ready()."""
        return self._queries.enabled

    def query_readiness(self, on_response: Callable[[bool | None], None]) -> None:
        """Ask the model whether it is ready, as in ReadinessQueries.submit_query(). Thread-safe."""
        self._queries.submit_query(on_response)

    @property
    def last_batch_begun(self) -> int:
        """Number of the last batch on a stream that the worker serves; 0 means none."""
        worker = self._worker
        return worker.last_batch if self._serves_stream and worker is not None else 0

    def begin_tenure(self) -> None:
        """Forget the last batch. The next scheduler numbers its batches from 1 again."""
        if self._worker is not None:
            self._worker.forget_last_batch()

    def running_requests(self) -> Sequence[int]:
        """Return the ids of the requests on the worker's own stream that execute. Thread-safe."""
        worker = self._worker
        # If another thread is removing the worker, its closed shared memory raises ValueError.
        with contextlib.suppress(ValueError):
            if self._serves_stream and worker is not None and not worker.is_confined:
                return worker.running_requests
        return ()

    def serve_stream(self, context: StreamContext) -> None:
        """Have the worker serve the instance's stream; return when the stream has ended.

        Raises ModelLostError, RpcError or ProtocolError as DirectServing, Internal if the worker
        cannot.
        """
        self._serves_stream = True
        worker = self._running_worker()
        supervisor = DirectSupervisor(self._spec, worker, context, self._spans)
        supervisor.run(self._send_from_other_threads)

    def wake(self) -> None:
        """Wake the instance's thread. Thread-safe."""
        worker = self._worker
        if worker is not None:
            worker.calls.wake()

    def file_descriptors(self) -> Sequence[int]:
        """Return the descriptors to poll. One is readable when there are updates to collect."""
        return self._running_worker().descriptors

    def begin_batch(self, batch: int, requests: Sequence[Request]) -> None:
        """Send a batch to the worker, which begins to execute it.

        Raises InvalidArgument if the frame would be too large, ModelLostError if the worker has
        ended.
        """
        worker = self._running_worker()
        confined = self._settings.confinement is not None
        members = []
        for place, request in enumerate(requests):
            number = self._specs.number_of(request.spec)
            # The tuple has the fields of wire.Member; a plain tuple is cheaper.
            tensors = inline_tensors(request.tensors) if confined else tensors_of(request)
            members.append((number, request.remaining_us, meta_of(request), tensors))
            if request.output_buffer is not None:
                self._output_buffers[batch, place] = request.output_buffer
        # A decoupled model may make calls for any of its open requests.
        latest_us = 0 if self._decoupled else deadline_us(requests)
        worker.calls.deadline = time.monotonic() + latest_us / 1e6 if latest_us else None
        self._send_frame(wire.BATCH, wire.batch_parts(batch, members))

    def control_request(self, batch: int, member: int, kind: int) -> None:
        """Cancel, pause or resume a request. kind is a value of MemberControl."""
        self._send_frame(wire.CONTROL, [_CONTROL.pack(batch, member, kind)])

    def may_have_begun(self, batch: int) -> bool:
        """Return whether the lost worker may have begun to execute this batch."""
        return self._worker is None or self._worker.last_batch >= batch

    def collect_updates(self, ready: Collection[int]) -> Iterator[BatchUpdate]:
        """Yield the updates that have arrived. ready: the readable file descriptors.

        Raises: ModelLostError: the worker has ended; raised after its last update.
        """
        worker = self._running_worker()
        with worker.loss_reported():
            for kind, body in worker.arrived_frames(ready):
                if kind == wire.RESPONSES:
                    # Later calls of the model do not belong to this batch and its deadline.
                    worker.calls.deadline = None
                    yield self._update_of(body)
                else:
                    worker.on_frame(kind, body)
            if worker.calls.fileno() in ready:
                self._send_from_other_threads()

    def _send_from_other_threads(self) -> None:
        worker = self._running_worker()
        worker.send_call_responses()
        for number in self._queries.pop_unsent():
            worker.send_json(wire.READINESS_QUERY, number)

    def _running_worker(self) -> WorkerProcess:
        if self._worker is None:
            raise ModelLostError("there is no worker")
        return self._worker

    def _send_frame(self, kind: int, parts: Sequence[Any]) -> None:
        worker = self._running_worker()
        with worker.loss_reported():
            worker.send_requests(kind, parts)

    def _update_of(self, body: bytearray) -> BatchUpdate:
        batch, flags, replies = wire.read_responses(body)
        buffers = self._output_buffers
        rescheduled: Sequence[int] = ()
        if self._iterative:
            rescheduled = [reply.member for reply in replies if reply.flags & wire.RESCHEDULED]
            replies = [reply for reply in replies if not reply.flags & wire.RESCHEDULED]
            for member in rescheduled:
                buffers.pop((batch, member), None)
        responses = [
            self._heads.response_of(
                *reply, buffers.pop((batch, reply[0]), None) if buffers else None
            )
            for reply in replies
        ]
        return BatchUpdate(batch, responses, bool(flags & wire.EXECUTED), rescheduled)
