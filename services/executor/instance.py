"""A model instance: a thread that loads the model, warms it up, and serves its own stream.

The thread blocks on its socket, runs the batch, writes the answers: no event loop and no hand-over
in between. While it lives:

    loading -> warming -> dialling -> serving -> stopped
                             ^-----------|          the stream broke, and nobody said stop

Any of them goes to stopped by stop(); loading, warming and dialling by failing as well. `ended` is
called once, from the thread, after the model is freed: with the failure, or with None.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nereid.backends import ModelLostError, ReadinessReporter, RequestModel
from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError, Unavailable
from nereid.core.messages import ErrorStatus, error_status_of
from nereid.core.methods import CONTROLS_KEY, EXECUTE_PATH, INSTANCE_KEY, READY_KEY, VOUCHED_KEY
from nereid.rpc import BlockingStream, RpcError, Status
from nereid.services.executor.backends.direct_serving import DirectServing, StreamContext
from nereid.services.executor.batch.batch_runner import Runner
from nereid.services.executor.batch.request_runner import RequestRunner
from nereid.services.executor.shared_tensors import Lender
from nereid.services.executor.warmup import warm_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.backends import InstanceSpec, Model
    from nereid.observability.tracing import Tracer
    from nereid.rpc.net.tls_files import Tls
    from nereid.services.executor.backends.registry import BackendRegistry
    from nereid.services.executor.shared_tensors import SharedTensors

_log = logging.getLogger(__name__)

DIAL_TIMEOUT_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0

# With any other status the scheduler may want the instance yet.
_REFUSALS: Final = frozenset(
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
class Scheduler:
    """Where an instance finds its scheduler."""

    address: str
    tls: Tls | None


@dataclass(frozen=True)
class Callbacks:
    """Whom an instance tells of its life; called from its thread."""

    loaded: Callable[[], None]
    ended: Callable[[ErrorStatus | None], None]
    # A model that serves its stream itself was lost: the last batch that it had begun, and what is
    # to be said of that.
    lost: Callable[[int, ErrorStatus], None]
    # Held while a model is loaded, so that not too many are at a time.
    loads: threading.Semaphore = field(default_factory=threading.Semaphore)
    # Takes the spans of sampled requests; None: nothing is traced.
    tracer: Tracer | None = None


class Instance:
    """One loaded copy of a model version; start() and stop() may be called from any thread."""

    def __init__(
        self,
        number: int,
        spec: InstanceSpec,
        backends: BackendRegistry,
        scheduler: Scheduler,
        callbacks: Callbacks,
    ) -> None:
        self.number = number
        self._shared_tensors: SharedTensors | None = None
        self._lender: Lender | None = None
        self.spec = spec
        self._backends = backends
        self._scheduler = scheduler
        self._callbacks = callbacks
        self._stopping = threading.Event()
        self._stream: BlockingStream | None = None
        self._executing = False
        # Of a model that answers requests in its own time.
        self._requests: RequestRunner | None = None
        # That model, if it may know whether it is ready, and if it serves the stream itself.
        self._asked: ReadinessReporter | None = None
        self._serving: DirectServing | None = None
        # Nobody takes its answers any more.
        self._forsaken = threading.Event()
        # How many batches it has answered; its thread alone writes.
        self._batches = 0
        self._thread = threading.Thread(target=self._run, name=f"instance-{spec.name}", daemon=True)

    @property
    def version(self) -> tuple[str, int]:
        """Which model and version it is an instance of."""
        return self.spec.config.name, self.spec.version

    @property
    def batches(self) -> int:
        """How many batches it has answered."""
        if self._serving is not None:
            self._batches = max(self._batches, self._serving.last_batch_begun)
        return self._batches

    def share(self, shared_tensors: SharedTensors, *, lending: bool) -> None:
        """Before the start: read tensors in shared memory; lending: and put answers there."""
        self._shared_tensors = shared_tensors
        self._lender = Lender(shared_tensors) if lending else None

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, unanswered: bool = False) -> None:
        """End after the batch under way; unanswered: nobody takes its answers any more."""
        if unanswered:
            self._forsaken.set()
        self._stopping.set()
        if self._serving is not None:
            self._serving.wake()
        stream = self._stream
        # A thread with a batch under way closes the stream itself, after answering. A batch that
        # arrives in this very moment is lost with the stream; the scheduler gives it to another.
        # A scheduler that vanished would keep a thread that answers waiting for many minutes.
        if stream is not None and (unanswered or not self._busy):
            stream.close()

    def readiness_query(self, on_response: Callable[[bool], None]) -> None:
        """Whether its model calls itself ready. From any thread; there may be no answer."""
        if self._asked is None:
            on_response(False)
        else:
            self._asked.query_readiness(on_response)

    @property
    def _busy(self) -> bool:
        return self._executing or (self._requests is not None and self._requests.busy)

    def _run(self) -> None:
        error_status: ErrorStatus | None = None
        try:
            self._load_and_serve()
        except NereidError as error:
            error_status = error_status_of(error)
        except Exception:
            _log.exception("instance %s failed", self.spec.name)
            error_status = error_status_of(Internal(INTERNAL_MESSAGE))
        if error_status is not None:
            _log.warning("instance %s ended: %s", self.spec.name, error_status.message)
        self._callbacks.ended(error_status)

    def _load_and_serve(self) -> None:
        spec = self.spec
        with self._callbacks.loads:
            if self._stopping.is_set():
                return
            model = self._backends.load_backend(spec.config.backend).load(spec)
        try:
            if isinstance(model, RequestModel):
                self._serve_requests(model)
            else:
                self._serve_batches(model)
        finally:
            model.close()

    def _serve_batches(self, model: Model) -> None:
        view = None if self._shared_tensors is None else self._shared_tensors.view
        runner = Runner(self.spec, model, self._callbacks.tracer, view)
        self._warm_up(runner)
        self._serve_streams(lambda: self._serve(runner))

    def _serve_requests(self, model: RequestModel) -> None:
        """As for other models, but this one may be lost, and comes back."""
        runner = RequestRunner(self.spec, model, self._callbacks.tracer)
        self._requests = runner
        if isinstance(model, ReadinessReporter):
            self._asked = model
        try:
            self._warm_up(runner)
        except ModelLostError as error:
            raise Internal(f"it failed on its warm-up: {error}") from error
        while True:
            try:
                self._serve_streams(lambda: self._serve_one_way_or_other(model, runner))
                return
            except ModelLostError:
                # Its stream is closed: until the model is back, nobody gives it anything.
                if not model.restart(self._stopping):
                    return

    def _warm_up(self, runner: Runner | RequestRunner) -> None:
        warm_up(self.spec.config, self.spec.version_path.parent, runner.execute)
        # Not before: nobody would give back what a warm-up lends.
        borrower = runner if isinstance(runner, Runner) else runner.rooms
        borrower.lender = self._lender
        self._callbacks.loaded()

    def _serve_streams(self, serve: Callable[[], None]) -> None:
        """Stream after stream, until stop(); serve: one of them, from dialling to its end."""
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                try:
                    serve()
                finally:
                    if self._lender is not None and not self._stopping.is_set():
                        self._lender.discard_lent()
                # The scheduler ended the stream in good order: it says by its own stream what next.
                self._stopping.wait()
            except RpcError as error:
                if self._stopping.is_set():
                    return
                if error.status in _REFUSALS:
                    raise Unavailable(
                        f"the scheduler refused the instance: {error.message}"
                    ) from error
                _log.debug("instance %s lost its stream: %s", self.spec.name, error.message)
            if time.monotonic() - began > _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            # Many instances lose their streams at once; they shall not come back at once.
            self._stopping.wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _serve_one_way_or_other(self, model: RequestModel, runner: RequestRunner) -> None:
        """As long as a stream lasts; the model itself, if it can, else through this thread."""
        in_clear = self._scheduler.tls is None
        if in_clear and isinstance(model, DirectServing) and model.can_serve_stream:
            self._serving = model
            model.serve_stream(self._stream_context())
            if model.can_serve_stream or self._stopping.is_set():
                return
            self._serving = None
        stream = self._dial()
        try:
            runner.serve(stream, self._stopping.is_set, self._count)
        finally:
            stream.close()

    def _stream_context(self) -> StreamContext:
        return StreamContext(
            address=self._scheduler.address,
            metadata=[*self._metadata(), (VOUCHED_KEY, "1")],
            is_stopping=self._stopping.is_set,
            is_abandoned=self._forsaken.is_set,
            on_lost=self._callbacks.lost,
            lender=self._lender,
            tracer=self._callbacks.tracer,
        )

    def _count(self) -> None:
        self._batches += 1

    def _metadata(self) -> list[tuple[str, str]]:
        metadata = [(INSTANCE_KEY, str(self.number))]
        if self._requests is not None:
            metadata.append((CONTROLS_KEY, "1"))
        if self._asked is not None and self._asked.reports_readiness:
            metadata.append((READY_KEY, "1"))
        return metadata

    def _dial(self) -> BlockingStream:
        stream = BlockingStream(
            self._scheduler.address,
            EXECUTE_PATH,
            metadata=self._metadata(),
            timeout_s=DIAL_TIMEOUT_S,
            tls=self._scheduler.tls,
            # What serves requests looks after its stream by itself.
            attended=self._requests is None,
        )
        self._stream = stream
        self._executing = False
        return stream

    def _serve(self, runner: Runner) -> None:
        """Until the stream ends, or stop() and the batch under way is answered."""
        stream = self._dial()
        try:
            self._execute_all(stream, runner)
        finally:
            stream.close()

    def _execute_all(self, stream: BlockingStream, runner: Runner) -> None:
        receive, send, execute = stream.receive, stream.send, runner.execute
        stopping = self._stopping.is_set
        while not stopping():
            frame = receive()
            if frame is None:
                return
            self._executing = True
            send(execute(frame))
            self._batches += 1
            self._executing = False
            if runner.traced is not None:
                runner.tell()
