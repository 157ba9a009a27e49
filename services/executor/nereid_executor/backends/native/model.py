"""A model whose batches a confined process executes."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from nereid.backends import ModelLostError
from nereid.core.errors import Internal
from nereid_executor.backends.native import messages
from nereid_executor.backends.native.forked_process import FORK_SERVERS
from nereid_executor.backends.python.supervisor.restarts import start_with_retries
from nereid_executor.backends.python.supervisor.worker_process import WorkerProcess
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.core.load_memory import process_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from threading import Event

    from nereid.backends import Capabilities, InstanceSpec, ModelDescription
    from nereid.core.tensors.tensors import Array
    from nereid_executor.backends.python.sandbox.policy import Confinement

_REPLY: Final = {wire.DESCRIBE: wire.DESCRIBED, wire.INITIALIZE: wire.INITIALIZED}
_START_S: Final = 30.0


def start_worker(
    kind: int, spec: InstanceSpec, confinement: Confinement, limit_s: float | None = None
) -> tuple[WorkerProcess, ModelDescription, Capabilities]:
    """Start a worker that loads an instance's model, or describes it; kind: the frame to send.

    Raises the backend's NereidError, or Internal if the worker ends or takes longer than limit_s.
    """
    name = spec.config.name
    worker = WorkerProcess(
        sys.executable,
        name,
        # It has neither metrics nor lines that it does not print.
        lambda _kind, _body: None,
        threads=spec.threads,
        confinement=confinement,
        fork=partial(FORK_SERVERS.fork, spec.config.backend),
        name=spec.name,
    )
    try:
        worker.wait_for(wire.STARTED, _START_S)
        worker.send_frame(kind, messages.spec_parts(spec))
        body = worker.wait_for(_REPLY[kind], limit_s, spec.is_wanted)
        return worker, *messages.read_loaded(body)
    except (wire.LostError, wire.SlowError) as error:
        reason = worker.death_reason()
        worker.kill()
        raise Internal(reason) from error
    except wire.WireError as error:
        worker.kill()
        raise Internal(f"malformed message from the worker of model '{name}': {error}") from error
    except BaseException:
        worker.kill()
        raise


class NativeModel:
    """A Model that executes in a worker process. Only its instance's thread uses it.

    It has restart(), like a RequestModel.
    """

    def __init__(self, spec: InstanceSpec, confinement: Confinement) -> None:
        self._spec = spec
        self._confinement = confinement
        self._worker: WorkerProcess | None = None
        self._worker, self.description, declared = self._start()
        # The memory of the worker counts, not the executor's. Batches follow one another.
        self.capabilities = replace(declared, memory_bytes=process_bytes(self._worker.pid))

    def _start(self) -> tuple[WorkerProcess, ModelDescription, Capabilities]:
        return start_worker(wire.INITIALIZE, self._spec, self._confinement)

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """Return the named outputs in this order.

        Raises NereidError if the model fails, ModelLostError if its process has ended.
        """
        worker = self._worker
        if worker is None:
            raise ModelLostError("there is no worker")
        with worker.loss_reported():
            worker.send_requests(wire.BATCH, messages.batch_parts(inputs, outputs))
            kind, body = worker.receive()
            if kind != wire.RESPONSES:
                raise wire.WireError(f"a frame of kind {kind}")
            return messages.read_outputs(body)

    def restart(self, stopping: Event) -> bool:
        """Start a new worker, retrying with back-off; return False if `stopping` is set first."""
        self._remove_worker(WorkerProcess.kill)
        started = start_with_retries(self._start, self._spec.name, stopping)
        if started is not None:
            self._worker = started[0]
        return started is not None

    def close(self) -> None:
        """Close the model and end its process."""
        self._remove_worker(WorkerProcess.shut_down)

    def _remove_worker(self, end: Callable[[WorkerProcess], None]) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            end(worker)
