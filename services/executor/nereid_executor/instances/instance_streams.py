"""The streams of one loaded model to its scheduler, one after another."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final, cast

from google.protobuf.message import DecodeError

from nereid.backends import capabilities_of
from nereid.core.errors import ProtocolError, Unavailable
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
from nereid.rpc import BlockingStream, RpcError, Status
from nereid.rpc.net.backoff import Backoff, BackoffOptions
from nereid_executor.backends.direct_serving import DirectServing, StreamContext
from nereid_executor.core.load_memory import write_sizes
from nereid_executor.instances.instance_state import InstanceState

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.backends import InstanceSpec, Model, ReadinessReporter, RequestModel
    from nereid_executor.batch.runner import Runner
    from nereid_executor.instances.instance_context import InstanceContext
    from nereid_executor.instances.tenure import Tenure

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


class InstanceStreams:
    """The streams of one loaded model. Only its instance's thread uses it, except where noted."""

    def __init__(  # noqa: PLR0913, PLR0917 (what it has of its instance)
        self,
        spec: InstanceSpec,
        model: Model | RequestModel,
        runner: Runner,
        context: InstanceContext,
        memory: dict[str, int],
        enter: Callable[[InstanceState], None],
    ) -> None:
        """memory: bytes that the model takes, by device. enter: changes the instance's state."""
        self._name = spec.name
        self.runner = runner
        self._context = context
        self._memory = memory
        self._enter = enter
        capabilities = capabilities_of(model)
        self._executes_requests = capabilities.executes_requests
        self._readiness = (
            cast("ReadinessReporter", model) if capabilities.decides_readiness else None
        )
        # The model, if it serves streams itself, unless they need TLS.
        self.direct: DirectServing | None = None
        if isinstance(model, DirectServing) and model.can_serve_stream:
            self.direct = model
        # How many streams the model has served itself. The last of them has this number.
        self._direct_streams = 0
        self._stream: BlockingStream | None = None

    @property
    def completed(self) -> int:
        """Number of batches that were completed in this tenure. Thread-safe."""
        begun = 0 if self.direct is None else self.direct.last_batch_begun
        return max(self.runner.received.completed, begun)

    def begin_tenure(self, tenure: Tenure) -> None:
        """Begin a tenure, whose scheduler counts batches from 1 again."""
        self.runner.begin_tenure(tenure.lender)
        if self.direct is not None:
            self.direct.begin_tenure()

    def stop(self, *, abandon: bool) -> None:
        """End the stream of a stopping tenure, or let the thread end it. Thread-safe."""
        if self.direct is not None:
            self.direct.wake()
        stream = self._stream
        # A thread with a batch closes the stream after its response. A batch that arrives at this
        # moment is lost with the stream, and runs elsewhere. If the scheduler has vanished, writing
        # the response could block for minutes.
        if stream is not None and (abandon or not self.runner.received.busy):
            stream.cut()

    def withdraw(self, batch: int) -> bool:
        """Withdraw a batch; return False if it has begun, or may begin. Thread-safe."""
        # Batches of requests are read as they arrive, so none can be given back. The scheduler
        # knows this, since the metadata has no WITHDRAWALS_KEY.
        return not self._executes_requests and self.runner.received.withdraw(batch)

    def serve(self, tenure: Tenure) -> None:
        """Serve streams, one after another, until the tenure is stopping.

        Raises ModelLostError, or Unavailable if the scheduler refuses the instance.
        """
        stopping, lender = tenure.stopping, tenure.lender
        longest_pause_s = self._context.times.longest_dial_pause_s
        # Pauses have jitter, since many instances may lose their streams at the same time.
        backoff = Backoff(BackoffOptions(largest_s=longest_pause_s))
        while not stopping.is_set():
            self._enter(InstanceState.CONNECTING)
            began = time.monotonic()
            try:
                try:
                    self._serve_stream(tenure)
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
                _log.debug("instance %s lost its stream: %s", self._name, error.message)
            except (ProtocolError, DecodeError) as error:
                _log.error(
                    "the scheduler broke the protocol with instance %s; connecting anew: %s",
                    self._name,
                    error,
                )
            if time.monotonic() - began > longest_pause_s:
                backoff.succeeded()
            stopping.wait(backoff.next_delay_s())

    def _serve_stream(self, tenure: Tenure) -> None:
        endpoint = tenure.endpoint
        if self.direct is not None and endpoint.tls is None:
            self._enter(InstanceState.SERVING)
            self.direct.serve_stream(self._stream_context(tenure))
            return
        stream = BlockingStream(
            endpoint.address,
            EXECUTE_PATH,
            metadata=self._metadata(tenure),
            timeout_s=self._context.times.connect_s,
            tls=endpoint.tls,
            # With a RequestModel, the runner polls the socket all the time.
            background_keepalive=not self._executes_requests,
        )
        with closing(stream):
            self._stream = stream
            self._enter(InstanceState.SERVING)
            self.runner.serve(stream, tenure.stopping.is_set)

    def _stream_context(self, tenure: Tenure) -> StreamContext:
        self._direct_streams += 1
        number = self._direct_streams
        context = self._context
        return StreamContext(
            number=number,
            instance_number=tenure.number,
            address=tenure.endpoint.address,
            metadata=[*self._metadata(tenure), (CRASH_REPORTS_KEY, str(number))],
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

    def _metadata(self, tenure: Tenure) -> list[tuple[str, str | bytes]]:
        context = self._context
        metadata: list[tuple[str, str | bytes]] = [
            (INSTANCE_KEY, str(tenure.number)),
            (EXECUTOR_KEY, context.process),
        ]
        if context.credentials is not None:
            metadata += context.credentials(EXECUTE_PATH)
        metadata.append((CONTROLS_KEY if self._executes_requests else WITHDRAWALS_KEY, "1"))
        if self._readiness is not None and self._readiness.reports_readiness:
            metadata.append((READINESS_KEY, "1"))
        if self.runner.has_states:
            metadata.append((STATES_KEY, "1"))
        metadata.append((MEMORY_KEY, write_sizes(self._memory)))
        return metadata
