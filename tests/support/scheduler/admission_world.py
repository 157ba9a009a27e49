"""Admission with one model, which is being loaded, and a gateway's session."""

from typing import Any

from nereid.core.wire.messages import InferRequest, InferResponse
from nereid.pb import kserve_pb2, model_config_pb2
from nereid_scheduler.admission.admission import Admission
from nereid_scheduler.admission.gateway_session import GatewaySession
from nereid_scheduler.core.models.lifecycle import LoadStatus
from nereid_scheduler.core.requests.load_queue import LoadQueue
from nereid_scheduler.placement.models.catalogue import Catalogue, ServedModel, ServedVersion
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.tracing.request_traces import SpanTraces
from nereid_scheduler.versions.version_context import VersionContext
from tests.support.peers.spans import RecordedSpans
from tests.support.scheduler.samples import model_of

TENSORS = """
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
"""


class Link:
    def __init__(self) -> None:
        self.sent: list[InferResponse] = []

    def send(self, item: InferResponse) -> None:
        self.sent.append(item)

    def send_now(self, item: InferResponse) -> None:
        self.send(item)


class AdmissionWorld:
    """One model named m whose first load is in progress, and a gateway."""

    def __init__(
        self,
        limit_s: float = 10.0,
        *,
        max_held: int = 2,
        max_queue_size: int = 0,
        served: ServedVersion | None = None,
        **admission: Any,
    ) -> None:
        self.max_queue_size = max_queue_size
        self.tracer = RecordedSpans()
        self.traces = SpanTraces(self.tracer)
        self.served = served or loading_version()
        self.catalogue = Catalogue([ServedModel("m", {1: self.served})])
        self.load_queue = LoadQueue(limit_s, max_held)
        self.admission = Admission(self.catalogue, self.load_queue, self.traces, **admission)
        self.link = Link()
        self.gateway = GatewaySession(self.admission)
        self.gateway.link = self.link

    def ready(self) -> ModelVersion:
        """The model is loaded."""
        context = VersionContext(QueueLimits(self.max_queue_size), self.traces)
        model = ModelVersion(model_of(TENSORS), 1, context)
        self.served.runtime = model
        self.served.life.report("a", LoadStatus.UP)
        self.admission.models_changed()
        return model

    def errors(self) -> list[tuple[int, str]]:
        return [(each.id, each.error.message) for each in self.link.sent if each.error]


def loading_version() -> ServedVersion:
    served = ServedVersion("m", 1, "", model_config_pb2.ModelConfig())
    served.life.await_executor()
    return served


def request(number: int, **fields: Any) -> InferRequest:
    head = kserve_pb2.ModelInferRequest(model_name="m")
    head.inputs.add(name="I", datatype="UINT8", shape=[1])
    return InferRequest(number, head.SerializeToString(), [b"x"], **fields)
