"""An instance at the scheduler, and its stream as two channels; what executes is the world's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from tests.protocols.explorer import Channel
from tests.protocols.message import Message

if TYPE_CHECKING:
    from nereid.rpc import Status
    from nereid_scheduler.versions.model_version import ModelVersion
    from tests.protocols.virtual_loop import VirtualLoop


class InstanceWire:
    """Batches arrive at on_batch(), replies at the model version. Fulfils BatchStream."""

    def connect(
        self, loop: VirtualLoop, model: ModelVersion, number: int, name: str, **fields: Any
    ) -> None:
        """Open a stream, whose instance the version is yet to get."""
        self.name = name
        self.instance = RemoteInstance(number, name, "e", self, **fields)
        self.batches = Channel(f"to {name}", self.on_batch)
        deliver = partial(self._on_reply, loop, model, self.instance)
        self.replies = Channel(f"from {name}", deliver)

    def on_batch(self, message: Any) -> None:
        raise NotImplementedError

    def describe(self, batch: pb.Batch) -> str:
        """Return what a story says of a batch that is sent."""
        raise NotImplementedError

    @staticmethod
    def _on_reply(
        loop: VirtualLoop, model: ModelVersion, instance: RemoteInstance, message: Any
    ) -> None:
        loop.run(model.pool.on_reply, instance, message.body)

    def reply(self, content: bytes, text: str) -> None:
        self.replies.send(Message(content, text))

    def break_stream(self) -> None:
        self.batches.close()
        self.replies.close()

    # ---- the scheduler's end

    def send(self, message: bytes, at_once: bool = False) -> None:
        self.batches.send(Message(message, self.describe(pb.Batch.FromString(message))))

    def finish(self) -> None:
        """Do nothing."""

    def fail(self, status: Status, message: str) -> None:
        raise AssertionError(status, message)
