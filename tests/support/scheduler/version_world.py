"""A model version with instances whose streams are lists: what it sends, and its responses."""

from typing import Any

from nereid.core.wire.messages import InferRequest, InferResponse
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.core.requests.entry import Entry
from nereid_scheduler.core.requests.entry_trace import NO_TRACES, Traces
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.version_context import VersionContext
from tests.support.scheduler.fake_executors import Stream
from tests.support.scheduler.samples import head_of, model_of

TENSORS = """
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
"""


class VersionWorld:
    """Version 1 of a model named m."""

    def __init__(
        self,
        text: str = "",
        *,
        backend: str = "python",
        context: VersionContext | None = None,
        traces: Traces = NO_TRACES,
        **limits: Any,
    ) -> None:
        """text: of its configuration; limits: of its queue."""
        config = model_of(TENSORS + text, backend=backend)
        self.model = ModelVersion(
            config, 1, context or VersionContext(QueueLimits(**limits), traces)
        )
        self.responses: list[InferResponse] = []

    def instance(
        self, name: str = "i", number: int = 1, **fields: Any
    ) -> tuple[RemoteInstance, Stream]:
        stream = Stream()
        instance = RemoteInstance(number, name, "executor", stream, **fields)
        self.model.add_instance(instance)
        return instance, stream

    def request(self, number: int, **fields: Any) -> InferRequest:
        shape = [1, 1] if self.model.config.max_batch_size else [1]
        return InferRequest(number, head_of([("I", "UINT8", shape)]), [b"x"], **fields)

    def submit(self, *numbers: int, at_once: bool = False, **fields: Any) -> list[Entry]:
        return [
            self.model.submit(
                self.request(number, **fields), self.responses.append, at_once=at_once
            )
            for number in numbers
        ]

    def outcomes(self) -> dict[int, str]:
        """The errors of the requests that have a response; empty: none."""
        return {each.id: each.error.message if each.error else "" for each in self.responses}


def batches(stream: Stream) -> list[list[int]]:
    """The numbers of the requests in each batch that was sent."""
    return [[member.id for member in batch.members] for batch in stream.sent if batch.members]
