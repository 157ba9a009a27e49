"""The Python backend: model.py files with Triton's interface, a process for each instance.

A worker that ends by itself takes nothing along but what it was executing; it is started anew.
"""

from __future__ import annotations

import json
import logging
import random
import re
import sys
import time
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format

from nereid.backends import (
    BatchUpdate,
    InstanceSpec,
    ModelDescription,
    ModelLostError,
    Request,
    RequestSpec,
)
from nereid.core.errors import Internal, InvalidArgument, NereidError, NotFound
from nereid.model_config import config_json
from nereid.pb import model_config_pb2
from nereid.services.executor.backends.python.supervisor import notifications
from nereid.services.executor.backends.python.supervisor.model_calls import Calls
from nereid.services.executor.backends.python.supervisor.readiness_queries import Questions
from nereid.services.executor.backends.python.supervisor.request_metadata import (
    form_of,
    meta_of,
    tensors_of,
)
from nereid.services.executor.backends.python.supervisor.response_heads import Heads
from nereid.services.executor.backends.python.supervisor.supervision import Supervision, UnableError
from nereid.services.executor.backends.python.supervisor.visible_config import kind_of, seen_config
from nereid.services.executor.backends.python.supervisor.worker_process import WorkerProcess
from nereid.services.executor.backends.python.supervisor.worker_settings import (
    WorkerSettings,
    settings_of,
)
from nereid.services.executor.backends.python.worker_site.nereid_worker import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path
    from threading import Event

    from nereid.core.messages import SharedMemory
    from nereid.services.executor.backends.direct_serving import StreamContext

_log = logging.getLogger(__name__)

DEFAULT_FILENAME: Final = "model.py"
_COMPLETES: Final = re.compile(rb"\bauto_complete_config\b")
# What a model may complete.
_COMPLETED: Final = (
    "max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy"
)  # fmt: skip

_FORM: Final = Struct("<Q")
_CONTROL: Final = Struct("<QII")
_MOST_FORMS: Final = 1024
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0


def uses_gpus() -> bool:
    """Models may; but that they can is no reason to offer GPUs."""
    return False


def describe(config: model_config_pb2.ModelConfig, version_path: Path) -> ModelDescription:
    """The configuration as the model's auto_complete_config leaves it."""
    path = _model_file(config, version_path)
    completed = model_config_pb2.ModelConfig()
    completed.CopyFrom(config)
    is_whole = bool(config.input) and bool(config.output)
    if not is_whole or _COMPLETES.search(path.read_bytes()):
        settings = settings_of(config, version_path.parent, {})
        worker = WorkerProcess(
            settings.python, config.name, notifications.Listener(config.name).hear
        )
        try:
            worker.ask(wire.STARTED, settings.start_s)
            worker.tell(wire.DESCRIBE, _about(config, path))
            wire_response = json.loads(bytes(worker.ask(wire.DESCRIBED, settings.initialize_s)))
        except (wire.LostError, wire.SlowError) as error:
            raise Internal(worker.death()) from error
        finally:
            worker.kill()
        _take_over(completed, wire_response)
    return ModelDescription((), (), completed)


def load(spec: InstanceSpec) -> PythonModel:
    """A worker of the instance's own, with its model initialised."""
    _model_file(spec.config, spec.version_path)
    settings = settings_of(spec.config, spec.version_path.parent, spec.settings)
    return PythonModel(spec, settings)


def _model_file(config: model_config_pb2.ModelConfig, version_path: Path) -> Path:
    path = version_path / (config.default_model_filename or DEFAULT_FILENAME)
    if not path.is_file():
        raise NotFound(f"Python model file not found in '{path}'")
    return path


def _about(config: model_config_pb2.ModelConfig, path: Path) -> dict[str, Any]:
    return {
        "model_config": config_json(seen_config(config)).decode(),
        "version_path": str(path.parent),
        "filename": path.name,
        "decoupled": config.model_transaction_policy.decoupled,
        "verbose": logging.getLogger().isEnabledFor(logging.DEBUG),
    }


def _take_over(config: model_config_pb2.ModelConfig, wire_response: dict[str, Any] | None) -> None:
    """Put into config what the model completed."""
    if wire_response is None:
        return
    told_of: dict[str, Any] = {}
    for name in _COMPLETED:
        if name not in wire_response:
            continue
        told_of[name] = wire_response[name]
        config.ClearField(name)
    try:
        json_format.ParseDict(told_of, config, ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise InvalidArgument(
            f"model '{config.name}': auto_complete_config left a configuration that makes no "
            f"sense: {error}"
        ) from error


class PythonModel:
    """A model in a worker; used by its instance's thread alone."""

    def __init__(self, spec: InstanceSpec, settings: WorkerSettings) -> None:
        self._spec = spec
        self._settings = settings
        self.decoupled = spec.config.model_transaction_policy.decoupled
        self.execution_timeout_s = settings.execute_s
        self._heads = Heads(spec.config.name, str(spec.version))
        self._forms: dict[RequestSpec, int] = {}
        # Where answers may lie, by batch and member.
        self._rooms: dict[tuple[int, int], SharedMemory] = {}
        self._listener = notifications.Listener(spec.name)
        self._questions = Questions()
        # Its worker may serve the instance's stream itself, for all that is known; and it does.
        self._can_serve = not self.decoupled and self.execution_timeout_s is None
        self._serves = False
        self._worker: WorkerProcess | None = self._start()

    # ---- the worker's life

    def _start(self) -> WorkerProcess:
        """Raises Internal if it does not get as far as serving."""
        spec, settings = self._spec, self._settings
        self._forms.clear()
        self._rooms.clear()
        calls = Calls(spec.mesh, spec.number)
        worker = WorkerProcess(settings.python, spec.config.name, self._hear, calls)
        try:
            worker.ask(wire.STARTED, settings.start_s)
            path = _model_file(spec.config, spec.version_path)
            memory = None if spec.mesh is None else spec.mesh.memory
            about = {"args": self._args(), "memory": memory}
            worker.tell(wire.INITIALIZE, {**_about(spec.config, path), **about})
            has_is_ready = worker.ask(wire.INITIALIZED, settings.initialize_s) == b"true"
        except (wire.LostError, wire.SlowError) as error:
            text = worker.death()
            worker.kill()
            raise Internal(text) from error
        except BaseException:
            worker.kill()
            self._listener.forget()
            raise
        if has_is_ready:
            self._questions.open(calls.ring)
        return worker

    def _hear(self, kind: int, body: bytearray) -> None:
        if kind == wire.READY:
            self._questions.hear(body)
        else:
            self._listener.hear(kind, body)

    def _args(self) -> dict[str, str]:
        """What initialize() gets."""
        spec = self._spec
        return {
            "model_config": config_json(seen_config(spec.config, spec.gpu)).decode(),
            "model_instance_kind": kind_of(spec),
            "model_instance_name": spec.name,
            "model_instance_device_id": str(spec.gpu or 0),
            "model_repository": str(spec.version_path.parent),
            "model_version": str(spec.version),
            "model_name": spec.config.name,
        }

    def restart(self, stopping: Event) -> bool:
        """Start a new worker, again and again if need be, less and less often."""
        self._bury()
        pause_s = _FIRST_PAUSE_S
        while not stopping.is_set():
            try:
                self._worker = self._start()
                return True
            except NereidError as error:
                _log.warning("instance %s has no worker: %s", self._spec.name, error.message)
            stopping.wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return False

    def terminate(self) -> None:
        if self._worker is not None:
            self._worker.interrupt()

    def close(self) -> None:
        self._questions.close()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()
        self._listener.forget()

    def _bury(self) -> None:
        self._questions.close()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
        self._listener.forget()

    def death(self) -> str:
        """Why it was lost."""
        return "" if self._worker is None else self._worker.death()

    @property
    def reports_readiness(self) -> bool:
        return self._questions.welcome

    def query_readiness(self, on_response: Callable[[bool], None]) -> None:
        self._questions.ask(on_response)

    # ---- its instance's stream

    @property
    def can_serve_stream(self) -> bool:
        """Only in the executor's own Python, and where nobody has to look at the time."""
        return self._can_serve and self._settings.python == sys.executable

    @property
    def last_batch_begun(self) -> int:
        worker = self._worker
        return worker.began if self._serves and worker is not None else 0

    def serve_stream(self, context: StreamContext) -> None:
        self._serves = True
        try:
            Supervision(self._spec, self._alive(), context).run(self._tell)
        except UnableError as error:
            _log.warning("%s: its worker cannot serve by itself: %s", self._spec.name, error)
            self._serves = self._can_serve = False

    def wake(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.calls.ring()

    # ---- batches

    def file_descriptors(self) -> Sequence[int]:
        return self._alive().descriptors

    def begin_batch(self, batch: int, requests: Sequence[Request]) -> None:
        worker = self._alive()
        members = []
        latest_us: int | None = 0
        for place, request in enumerate(requests):
            members.append(self._member(worker, request))
            remaining_us = request.remaining_us
            # One without a limit takes the others' away.
            if latest_us is not None:
                latest_us = max(latest_us, remaining_us) if remaining_us else None
            if request.output_buffer is not None:
                self._rooms[batch, place] = request.output_buffer
        if self.decoupled:
            # It may ask for the sake of any of the requests that it has.
            latest_us = None
        worker.calls.deadline = time.monotonic() + latest_us / 1e6 if latest_us else None
        self._send(worker, wire.BATCH, wire.batch_parts(batch, members))

    def control_request(self, batch: int, member: int, kind: int) -> None:
        self._send(self._alive(), wire.CONTROL, [_CONTROL.pack(batch, member, kind)])

    def may_have_begun(self, batch: int) -> bool:
        return self._worker is None or self._worker.began >= batch

    def collect_updates(self, ready: Collection[int]) -> Iterator[BatchUpdate]:
        worker = self._alive()
        channel = worker.channel
        socket, watched, calls = worker.descriptors
        is_gone = watched in ready
        with worker.spoken_with():
            # One read; whether there is more will be told. Of one that is gone, all it has said.
            while (is_gone or socket in ready) and channel.fill():
                while (frame := channel.held()) is not None:
                    kind, body = frame
                    if kind == wire.RESPONSES:
                        # What it asks from now on is not for this batch.
                        worker.calls.deadline = None
                        yield self._collected(body)
                    else:
                        worker.hear(kind, body)
                if not is_gone:
                    break
            if calls in ready:
                self._tell(worker)
            if is_gone:
                raise wire.LostError

    def _tell(self, worker: WorkerProcess) -> None:
        """Tell it what came from elsewhere."""
        worker.response_calls()
        for number in self._questions.fetch():
            worker.tell(wire.READINESS_QUERY, number)

    def _alive(self) -> WorkerProcess:
        if self._worker is None:
            raise ModelLostError("there is no worker")
        return self._worker

    def _send(self, worker: WorkerProcess, kind: int, parts: Sequence[Any]) -> None:
        try:
            worker.send(kind, parts)
        except wire.WireError as error:
            raise InvalidArgument(
                f"the requests of a batch of model '{self._spec.config.name}' are larger together "
                "than what a worker can be sent",
                accepted=True,
            ) from error
        except (wire.LostError, wire.SlowError) as error:
            raise ModelLostError from error

    def _member(
        self, worker: WorkerProcess, request: Request
    ) -> tuple[int, bytes, int, Sequence[Any]]:
        """As a wire.Member."""
        form = request.spec
        number = self._forms.get(form) or self._tell_form(worker, form)
        return number, meta_of(request), request.remaining_us, tensors_of(request)

    def _tell_form(self, worker: WorkerProcess, form: RequestSpec) -> int:
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
            self._send(worker, wire.FORM, [_FORM.pack(0)])
        number = self._forms[form] = len(self._forms) + 1
        self._send(worker, wire.FORM, [_FORM.pack(number), form_of(form)])
        return number

    def _collected(self, body: bytearray) -> BatchUpdate:
        batch, flags, replies = wire.read_responses(body)
        rooms = self._rooms
        responses = [
            self._heads.response(reply, rooms.pop((batch, reply[0]), None) if rooms else None)
            for reply in replies
        ]
        return BatchUpdate(batch, responses, bool(flags & wire.FREE))
