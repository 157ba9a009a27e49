"""A worker that serves its instance's stream itself, as its executor sees it.

What is no answer still goes through here: logs, metrics, what the model asks of the mesh, memory
for large outputs, traces. And here is who outlives the worker, and can say what it had begun.
"""

from __future__ import annotations

import json
import select
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nereid
from nereid.backends import ModelLostError
from nereid.core.errors import Internal
from nereid.core.messages import ErrorStatus
from nereid.rpc import RpcError, Status
from nereid.services.executor.backends.python.worker_site.nereid_worker import wire
from nereid.services.executor.tracing import Run, record

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.backends import InstanceSpec
    from nereid.services.executor.backends.direct_serving import StreamContext
    from nereid.services.executor.backends.python.supervisor.worker_process import WorkerProcess

# Where a worker finds Nereid's own modules.
_ROOTS: Final = [str(Path(nereid.__file__).parents[1])]


class UnableError(Exception):
    """The worker cannot serve a stream."""


class Supervision:
    """One stream of one worker's; used by the instance's thread."""

    def __init__(self, spec: InstanceSpec, worker: WorkerProcess, context: StreamContext) -> None:
        self._spec = spec
        self._worker = worker
        self._context = context
        # How it ended, once it has.
        self._outcome: list[Any] = []

    def run(self, tell_worker: Callable[[WorkerProcess], None]) -> None:
        """Until the stream has ended; tell_worker: hands over what came for it from elsewhere.

        Raises:
            ModelLostError: the worker is gone, and the scheduler knows what it had begun.
            RpcError: the stream could not be opened, or broke.
            UnableError: the worker cannot serve it.
        """
        worker, context = self._worker, self._context
        try:
            with worker.spoken_with():
                worker.tell(wire.SERVE, self._about())
                self._attend(tell_worker)
        except ModelLostError:
            text = f"Stub process '{self._spec.name}' is not healthy."
            context.on_lost(worker.began, ErrorStatus(Internal.code, text, accepted=True))
            raise
        (outcome,) = self._outcome or [None]
        if isinstance(outcome, str):
            raise UnableError(outcome)
        if outcome is not None:
            raise RpcError(Status(outcome[0]), outcome[1])

    def _about(self) -> dict[str, Any]:
        context, spec = self._context, self._spec
        return {
            "roots": _ROOTS,
            "address": context.address,
            "metadata": context.metadata,
            "config": spec.config.SerializeToString().hex(),
            "version": str(spec.version),
            "model_path": str(spec.version_path.parent),
            "lends": context.lender is not None,
            "traces": context.tracer is not None,
        }

    def _attend(self, tell_worker: Callable[[WorkerProcess], None]) -> None:
        worker, context = self._worker, self._context
        channel = worker.channel
        socket, watched, calls = worker.descriptors
        poll = select.poll()
        for descriptor in worker.descriptors:
            poll.register(descriptor, select.POLLIN)
        stopping = False
        while not self._outcome:
            if context.is_stopping() and not stopping:
                stopping = True
                worker.tell(wire.STOP, None)
            if context.is_abandoned():
                # Whatever it answers now, nobody takes it.
                return
            ready = {descriptor for descriptor, _ in poll.poll()}
            is_gone = watched in ready
            while (is_gone or socket in ready) and channel.fill():
                while (frame := channel.held()) is not None:
                    self._hear(*frame)
                if not is_gone:
                    break
            if is_gone:
                raise wire.LostError
            if calls in ready:
                tell_worker(worker)

    def _hear(self, kind: int, body: bytearray) -> None:
        worker, context = self._worker, self._context
        if kind == wire.RESPONSES:
            raise wire.WireError("its answers go elsewhere")
        if kind not in (wire.SERVED, wire.ASK_ROOM, wire.TRACED):
            worker.hear(kind, body)
        else:
            try:
                message = json.loads(bytes(body))
                if kind == wire.SERVED:
                    self._outcome.append(message)
                elif kind == wire.TRACED:
                    self._record(*message)
                else:
                    room = context.lender and context.lender.room(int(message))
                    worker.tell(wire.ROOM, room)
            except (ValueError, TypeError) as error:
                raise wire.WireError("what it tells makes no sense") from error

    def _record(self, contexts: list[str], times: list[int]) -> None:
        if self._context.tracer is not None:
            started_ns, begun_ns, ran_ns, ended_ns = times
            members = [*map(bytes.fromhex, contexts)]
            run = Run(members, started_ns, begun_ns, ran_ns, ended_ns, None)
            record(self._context.tracer, self._spec.name, run)
