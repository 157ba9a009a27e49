"""An executor service in this event loop, connected to a scheduler over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nereid.pb import nereid_pb2 as pb
from nereid_executor.backends.registry import BUILT_IN, BackendRegistry, BuiltInBackend
from nereid_executor.service import ExecutorService
from nereid_executor.settings import ExecutorSettings
from tests.support.executor.executor_world import WAIT_S, InstanceStream, JoinStream, Scheduler
from tests.support.models.onnx_models import identity, identity_config

# Its one model executes when the test lets it.
GATED = BuiltInBackend("tests.support.executor.gated_backend", "numpy")
IDENTITY = identity_config("FP32", "2")


@dataclass
class World:
    scheduler: Scheduler
    service: ExecutorService
    running: asyncio.Task[bool]
    models: Path
    session: JoinStream
    hello: pb.Hello
    socket: Path = field(default_factory=Path)

    def identity(self) -> str:
        return str(identity(self.models / "identity" / "1", "FP32", ["n", 2]))

    async def instance(self, number: int = 7) -> InstanceStream:
        self.session.load(number, IDENTITY, self.identity())
        return await self.scheduler.accept_stream()

    async def leave(self) -> bool:
        self.service.leave()
        return await asyncio.wait_for(asyncio.shield(self.running), WAIT_S)


@asynccontextmanager
async def running(tmp_path: Path, **settings: object) -> AsyncIterator[World]:
    scheduler = Scheduler()
    async with scheduler.serving(tmp_path / "socket") as address:
        service = ExecutorService(
            ExecutorSettings(scheduler_address=address, name="one", gpus="none", **settings),  # type: ignore[arg-type]
            BackendRegistry(built_in={**BUILT_IN, "gated": GATED}),
        )
        task = asyncio.create_task(service.run())
        session, hello = await scheduler.accept_session()
        try:
            yield World(scheduler, service, task, tmp_path, session, hello, tmp_path / "socket")
        finally:
            service.leave()
            await asyncio.wait_for(task, WAIT_S)
