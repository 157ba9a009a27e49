"""Describes what a runner needs of a model's adapter, and both of an instance's stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from nereid.pb import nereid_pb2 as pb
    from nereid_executor.batch.batch_reader import BatchMessage
    from nereid_executor.batch.lifecycle.received_batch import ReceivedBatch
    from nereid_executor.batch.lifecycle.received_batches import ReceivedBatches
    from nereid_executor.core.shared_tensors import OutputLender

    # A batch with a frame to send, if there is one. A COMPLETE batch has no later frame.
    Progress = Iterable[tuple[Any, bytes | None]]


class FrameStream(Protocol):
    """The methods of a BlockingStream that runners and adapters use."""

    @property
    def ended(self) -> bool:
        """True if no further frame will come."""

    @property
    def has_input(self) -> bool:
        """True if read_messages() has a result even though the socket has nothing to read."""

    def fileno(self) -> int:
        """Return the socket's descriptor."""

    def receive(self) -> bytes | None:
        """Wait for the next frame and return it, or `None` after the end of the stream."""

    def read_messages(self) -> list[bytes]:
        """Return the frames that have arrived, without waiting."""

    def send(self, message: bytes) -> None:
        """Send a frame."""


class ModelAdapter(Protocol):
    """Executes a runner's batches on one loaded model. Only the instance's thread uses it."""

    received: ReceivedBatches[Any]
    # True if messages must be parsed with their members, which have the states of sequences.
    needs_members: bool
    # True if states of sequences can be exported and restored.
    has_states: bool

    def begin_tenure(self, lender: OutputLender | None) -> None:
        """Forget all sequences, and lend memory for responses from this lender."""

    def begin_stream(self, stream: FrameStream) -> None:
        """Prepare to wait for a new stream."""

    def wait(
        self, stream: FrameStream, stopping: Callable[[], bool]
    ) -> tuple[Sequence[bytes], Collection[int]]:
        """Wait for frames or for the model; return the frames, and what collect() gets.

        Raises RpcError, or ModelLostError if the model was too slow.
        """

    def wait_for_model(self, limit_s: float | None = None) -> Collection[int]:
        """Wait for the model alone; return what collect() gets."""

    def open_batches(self, message: BatchMessage, started_ns: int) -> Iterable[ReceivedBatch]:
        """Begin a message's batches: replays, each to be complete before the next, and its own."""

    def execute(self, batch: Any) -> Progress:
        """Give a begun batch to the model."""

    def collect(self, ready: Collection[int]) -> Progress:
        """Return the model's progress. Raises ModelLostError after the last progress."""

    def control_requests(self, controls: Iterable[pb.MemberControl]) -> None:
        """Cancel, pause or resume requests of the model; raise ProtocolError if that is wrong."""

    def export_states(self, slots: Iterable[int], reply: pb.Executed) -> None:
        """Add the states of slots to a reply, as far as they fit, and forget them."""

    def cancel(self, batch: Any) -> None:
        """Cancel a LOST batch, to which nobody wants responses."""

    def finish_lost(self) -> Progress:
        """Finish the batches of an ended stream that cannot be cancelled."""

    def fail_batches(self, why: str) -> Progress:
        """Fail the begun batches of a lost model, except for those that it never saw."""
