"""A mesh with several schedulers in one event loop, over unix sockets, with the fakes of
scheduler_world: each scheduler has an executor and a gateway of its own.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from nereid.core.wire.messages import InferResponse, MovedResponse, Ownership
from nereid_scheduler.control.shards.members.ownership import owner_of
from nereid_scheduler.placement.models.catalogue import Ready
from nereid_scheduler.service import SchedulerService
from nereid_scheduler.settings import Settings
from tests.support.scheduler.scheduler_world import LIMIT_S, Executor, Gateway, World
from tests.support.waiting import until


async def _nothing() -> None:
    pass


class Schedulers:
    """The schedulers by name, of one repository or several."""

    def __init__(
        self, repository: Path, names: str, others: tuple[Path, ...], **settings: object
    ) -> None:
        self._repository = repository
        self._repositories = tuple(map(str, (repository, *others)))
        self._settings = settings
        self.names = list(names)
        self.worlds: dict[str, World] = {}
        self.executors: dict[str, Executor] = {}
        self.gateways: dict[str, RoutingGateway] = {}

    def address(self, name: str) -> str:
        return f"unix:{self._repository.parent / name}.sock"

    def owner(self, model: str) -> str:
        """Return the owner of a model among the schedulers that run, by rendezvous hashing."""
        owner = owner_of(model, self.worlds)
        assert owner is not None
        return owner

    async def start(
        self, *names: str, on_listening: Callable[[], Awaitable[None]] = _nothing, **executor: Any
    ) -> None:
        """Start these, or all, each with an executor and a gateway.

        on_listening: awaited before a scheduler has an executor, without which it does not start.
        """
        starts = (self._start(name, on_listening, executor) for name in names or self.names)
        await asyncio.gather(*starts)

    async def _start(
        self, name: str, on_listening: Callable[[], Awaitable[None]], executor: dict[str, Any]
    ) -> None:
        service = SchedulerService(
            Settings(
                model_repository=self._repositories,
                scheduler_address=(self.address(name),),
                scheduler_name=name,
                scheduler_peers=",".join(map(self.address, self.names)),
                **self._settings,  # type: ignore[arg-type]
            )
        )
        starting = asyncio.ensure_future(service.start())
        where = World(service, self.address(name))
        await until(lambda: service.addresses or starting.done())
        await on_listening()
        # It starts once it has as many of these as the others.
        self.executors[name] = await where.executor(**executor)
        gateway = self.gateways[name] = RoutingGateway(where)
        await starting
        self.worlds[name] = where
        async with asyncio.timeout(LIMIT_S):
            await gateway.up.wait()

    async def kill(self, name: str) -> None:
        """End a scheduler as SIGKILL would: its connections break, and it hands nothing over."""
        where = self.worlds.pop(name)
        service = where.service
        assert service._models.shard is not None
        service._models.loader.stop()
        service._models.shard.changes.stop()
        await service._models.shard.links.close()
        await service._environment.ports.close()
        await where.close()

    async def drain(self, name: str, timeout_s: float = LIMIT_S) -> None:
        where = self.worlds.pop(name)
        await where.service.drain(timeout_s)
        await where.close()

    async def until_ready(self, **owners: str) -> None:
        """Until these models are ready at these schedulers, and at no other."""
        await until(
            lambda: all(
                self._has(where, model) == (where == owners[model])
                for model in owners
                for where in self.worlds
            )
        )

    def _has(self, where: str, model: str) -> bool:
        found = self.worlds[where].service._models.catalogue.resolve(model, "")
        return isinstance(found, Ready) and found.served.life.serving


class RoutingGateway(Gateway):
    """A gateway's link that keeps the notices."""

    def __init__(self, where: World) -> None:
        super().__init__(where)
        self.ownership: asyncio.Queue[Ownership] = asyncio.Queue()
        keep_responses = self.link.on_items

        def on_items(items: list[object]) -> None:
            for item in items:
                if isinstance(item, Ownership):
                    self.ownership.put_nowait(item)
            keep_responses(items)

        self.link.on_items = on_items

    async def until_named(self, *models: str) -> Ownership:
        """The first notice, from now on, of exactly these models."""
        while True:
            notice = await asyncio.wait_for(self.ownership.get(), LIMIT_S)
            if notice.models == tuple(sorted(models)):
                return notice


def is_moved(response: InferResponse) -> bool:
    return isinstance(response, MovedResponse)


@contextlib.asynccontextmanager
async def schedulers(
    repository: Path, names: str = "ab", *others: Path, **settings: object
) -> AsyncIterator[Schedulers]:
    """Not started yet."""
    it = Schedulers(repository, names, others, **settings)
    try:
        yield it
    finally:
        for name in list(it.worlds):
            await it.drain(name, 0)
