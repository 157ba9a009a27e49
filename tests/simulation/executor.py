"""A simulated executor: the real sessions with the schedulers, and all that they share, around
instances that are simulated.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from nereid.config.recovery import DEFAULT_TIMES
from nereid.pb import nereid_pb2 as pb
from nereid_executor.core.model_files import read_model_files
from nereid_executor.core.recent_runs import RecentRuns
from nereid_executor.core.shared_tensors import SharedTensors
from nereid_executor.instances.descriptions import Descriptions
from nereid_executor.instances.instance_context import InstanceContext
from nereid_executor.instances.kept_instances import KeptInstances
from nereid_executor.instances.load_slots import LoadSlots
from nereid_executor.instances.session_instances import ExecutorInstances
from nereid_executor.instances.tenure import SchedulerEndpoint
from nereid_executor.session.scheduler_sessions import SchedulerSessions
from nereid_executor.session.session import SessionContext
from nereid_executor.settings import ExecutorSettings
from tests.simulation.instance import SimulatedInstance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.backends import InstanceSpec
    from nereid_executor.instances.instance import Instance
    from nereid_executor.instances.tenure import Tenure
    from tests.simulation.models import SimulatedModel
    from tests.simulation.processes import Process
    from tests.simulation.surroundings import Surroundings

_EXIT_S = 8.0
_REPLACEABLE_S = DEFAULT_TIMES.peer_ping_after_s, DEFAULT_TIMES.peer_ping_reply_s
_ALONE_S = DEFAULT_TIMES.ping_after_s, DEFAULT_TIMES.ping_reply_s


class SimulatedRuns(RecentRuns):
    """What recalls wait for can be seen."""

    def recalled_ids(self) -> list[int]:
        """The requests that schedulers recall and that still run."""
        return list(self._waiting)


class SimulatedExecutor:
    """One process. Create it in its process."""

    def __init__(
        self,
        where: Surroundings,
        name: str,
        process: Process,
        number: int,
        models: Mapping[str, SimulatedModel],
    ) -> None:
        """number: of its process."""
        self._where = where
        self.name = name
        self.process = process
        self._models = models
        # Those that have not ended.
        self._made: list[SimulatedInstance] = []
        self._leaving = asyncio.Event()
        addresses = where.addresses
        settings = ExecutorSettings(
            scheduler_address=",".join(addresses), name=name, metrics_interval_ms=0
        )
        self.recent_runs = SimulatedRuns()
        context = InstanceContext(
            backends=cast("Any", None),
            load_slots=LoadSlots(1),
            shared_tensors=SharedTensors(0),
            process=f"{name}-{number}",
            recent_runs=self.recent_runs,
        )
        self.kept_s = where.random.choice((0.0, 5.0, DEFAULT_TIMES.restart_s))
        self.shared = ExecutorInstances(
            settings,
            context,
            KeptInstances(self.kept_s, self._is_commanded),
            make_instance=self._make_instance,
            claims=where.bugs.model_claims(),
        )
        hello = pb.Hello(name=name, host=name, backends=["python"])
        session_context = SessionContext(
            settings,
            hello,
            cast("Any", None),
            Descriptions(read_model_files),
            self.shared,
            self._leaving.set,
            freeze=_freeze_nothing,
        )
        keepalive_s = _REPLACEABLE_S if len(addresses) > 1 else _ALONE_S
        self.schedulers = [
            SchedulerSessions(
                session_context,
                where.open_channel(process, address, keepalive_s=keepalive_s),
                SchedulerEndpoint(address),
                address,
            )
            for address in addresses
        ]

    def start(self) -> None:
        """Join the schedulers."""
        loop = self._where.loop
        for each in self.schedulers:
            loop.create_task(each.run(self._leaving, lambda: True))

    def instances(self) -> list[SimulatedInstance]:
        """All that have not ended."""
        return list(self._made)

    async def leave(self) -> None:
        """Its end: batches are finished, states moved, and instances unloaded."""
        self._leaving.set()
        await asyncio.gather(*(each.leave(_EXIT_S) for each in self.schedulers))
        kept = self.shared.kept
        await kept.unload(kept.take_all(), _EXIT_S)
        await asyncio.gather(*(each.close() for each in self.schedulers))
        kept.close()

    def leaks(self) -> list[str]:
        """What should not be there when nothing is asked for any more."""
        found = [
            f"{self.name} still recalls request {each}" for each in self.recent_runs.recalled_ids()
        ]
        sessions = [each.session.instances for each in self.schedulers if each.session is not None]
        for model in self._models:
            holder = self.shared.claims.holder(model)
            if holder is not None and not any(
                holder is each and any(one.spec.config.name == model for one in each)
                for each in sessions
            ):
                found.append(f"{self.name}: a claim of model {model} was never released")
        return found

    # ---- inside

    def _is_commanded(self) -> bool:
        return any(each.is_commanded for each in self.schedulers)

    def _make_instance(
        self, spec: InstanceSpec, context: InstanceContext, tenure: Tenure
    ) -> Instance:
        self._made = [each for each in self._made if not each.ended]
        made = SimulatedInstance(
            self._where,
            self.process,
            self._models[spec.config.name],
            spec,
            context,
            tenure,
            on_serve=self._check_tenures,
        )
        self._made.append(made)
        return cast("Instance", made)

    def _check_tenures(self, instance: SimulatedInstance) -> None:
        """No two sessions have instances of a model at a time."""
        mine = instance.serving
        for each in self._made:
            theirs = each.serving
            if each.model is instance.model and each.serves and theirs.mesh is not mine.mesh:
                self._where.history.violate(
                    f"{instance.name} and {each.name} serve {mine.endpoint.address} and"
                    f" {theirs.endpoint.address} at a time"
                )


def _freeze_nothing() -> None:
    """All processes of the mesh have one heap."""
