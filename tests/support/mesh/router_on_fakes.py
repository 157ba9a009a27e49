"""A MeshRouter whose schedulers are the test."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from nereid.core.wire.messages import (
    CachedModels,
    InferRequest,
    InferResponse,
    Ownership,
    moved_response,
)
from nereid.mesh_routing.several.mesh_router import MeshRouter
from nereid.pb import kserve_pb2
from tests.support.mesh.fake_link import IGNORE, UnsharedTensors
from tests.support.mesh.fake_schedulers import FakeClock, FakeSchedulers

if TYPE_CHECKING:
    from nereid.core.wire.messages import FromScheduler, Notice
    from nereid.mesh_routing.router.pending_requests import PendingRequest, TensorSharing

LIMIT_S = 30.0


def head(model: str) -> bytes:
    """Return the head of a request to this model."""
    return kserve_pb2.ModelInferRequest(model_name=model).SerializeToString()


class RouterOnFakes:
    """A router, and what it delivered."""

    def __init__(self, *addresses: str, tensors: TensorSharing | None = None) -> None:
        self.schedulers = FakeSchedulers()
        self.clock = FakeClock()
        self.tensors = tensors or UnsharedTensors()
        self.notices: list[Notice] = []
        self.responses: defaultdict[int, list[InferResponse]] = defaultdict(list)
        self.router = MeshRouter(
            self.schedulers,
            self.tensors,
            LIMIT_S,
            IGNORE._replace(on_notice=self.notices.append),
            clock=self.clock,
        )
        self.router.open()
        self.schedulers.set_addresses(list(addresses))

    def infer(self, model: str, size_bytes: int = 0, *, caller: int = 0) -> PendingRequest:
        """caller: of a model's own request."""
        request = InferRequest(0, head(model), [], caller=caller)
        return self.router.pending.infer(request, self.on_response, size_bytes)

    def on_response(self, response: InferResponse) -> None:
        self.responses[response.id].append(response)

    def on_items(self, address: str, *items: FromScheduler) -> None:
        """Have a scheduler send these in one frame."""
        self.schedulers.links[address].on_items(list(items))

    def connect(self, address: str, *models: str, epoch: int = 1, domain: str = "") -> None:
        """A scheduler's link comes up; it has these models."""
        self.on_items(address, CachedModels((), domain), Ownership(address, epoch, models))

    def own(self, address: str, *models: str, epoch: int = 2, leaving: bool = False) -> None:
        """A scheduler announces what it has now."""
        self.on_items(address, Ownership(address, epoch, models, leaving))

    def respond(self, address: str, request_id: int, *, more: bool = False) -> None:
        self.on_items(address, InferResponse(request_id, more=more))

    def move(self, address: str, *request_ids: int) -> None:
        """A scheduler returns requests."""
        self.on_items(address, *map(moved_response, request_ids))

    def disconnect(self, address: str) -> None:
        self.schedulers.links[address].on_down()

    def sent(self, address: str) -> list[int]:
        """Return FakeLink.sent_ids() of a scheduler's link."""
        return self.schedulers.links[address].sent_ids()

    def errors(self, pending: PendingRequest) -> list[str]:
        """The texts of the errors that a request got."""
        got = self.responses[pending.request.id]
        return [response.error.message for response in got if response.error is not None]
