"""What this scheduler knows of the mesh beside its metrics: who runs what where. Changes nothing.

For whoever operates the mesh, asked for once a second at most by each gateway with a console.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.models.dependencies import plain_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from nereid.services.scheduler.executors.sessions import HostedVersion, Session
    from nereid.services.scheduler.models.catalogue import Catalogue, ServedVersion
    from nereid.services.scheduler.models.loader import Loader
    from nereid.services.scheduler.requests.gateway_session import GatewaySession
    from nereid.services.scheduler.shards.membership import Membership

# More are counted, and not named.
_MAX_OWNED: Final = 200
_MAX_HOSTED: Final = 1000
# A scheduler without others needs no name of its own.
_ONLY: Final = "scheduler"


class HostingFacts:
    """Responds to Facts calls."""

    def __init__(
        self,
        catalogue: Catalogue,
        loader: Loader,
        gateways: Collection[GatewaySession],
        membership: Membership | None = None,
    ) -> None:
        """membership: None: this is the mesh's only scheduler."""
        self._catalogue = catalogue
        self._loader = loader
        self._gateways = gateways
        self._membership = membership

    def respond(self, request: pb.FactsRequest) -> pb.FactsResponse:
        """What is so now."""
        response = pb.FactsResponse(
            executors=map(_executor, self._loader.sessions), schedulers=[self._scheduler()]
        )
        wanted = frozenset(request.models)
        if wanted:
            for served in self._catalogue.versions():
                name = plain_name(served.name, served.namespace)
                if name in wanted:
                    response.configs.add(model=name, version=served.number, config=served.draft)
        return response

    def _scheduler(self) -> pb.SchedulerFacts:
        names = sorted(each.plain_name for each in self._catalogue.models() if each.in_service)
        membership = self._membership
        return pb.SchedulerFacts(
            name=_ONLY if membership is None else membership.name,
            epoch=0 if membership is None else membership.epoch,
            gateways=len(self._gateways),
            owned=names[:_MAX_OWNED],
            models=len(names),
            reachable=True,
        )


def _executor(session: Session) -> pb.ExecutorFacts:
    hello = session.hello
    return pb.ExecutorFacts(
        name=hello.name,
        host=hello.host,
        devices=hello.devices,
        backends=hello.backends,
        usage=session.usage,
        hosted=(_hosted(*each) for each in islice(session.hosted.items(), _MAX_HOSTED)),
    )


def _hosted(served: ServedVersion, hosted: HostedVersion) -> pb.HostedModel:
    memory: dict[str, int] = {}
    for sizes in hosted.memory.values():
        for device, size in sizes.items():
            memory[device] = memory.get(device, 0) + size
    return pb.HostedModel(
        model=plain_name(served.name, served.namespace),
        version=served.number,
        instances=hosted.ready,
        busy=sum(each.batches.at_work for each in hosted.instances.values()),
        memory_bytes=memory,
    )
