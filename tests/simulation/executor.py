"""A simulated executor: it joins, loads instances as it is told to, ends and returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.methods import EXECUTOR_KEY
from nereid.pb import nereid_pb2 as pb
from tests.simulation.instance import SimulatedInstance
from tests.simulation.network import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulation.models import SimulatedModel
    from tests.simulation.surroundings import Surroundings

_LOAD_S = (0.005, 0.1)
_REJOIN_S = (0.02, 0.5)
_RETURN_S = (0.1, 2.0)
_LEAVE_S = (0.05, 0.3)


class SimulatedExecutor:
    """One host's; process after process."""

    def __init__(
        self, where: Surroundings, name: str, models: Mapping[str, SimulatedModel]
    ) -> None:
        self._where = where
        self._models = models
        self.name = name
        self.instances: dict[int, SimulatedInstance] = {}
        self.join_stream: Stream | None = None
        self.leaving = False
        # Of its process, and of its sessions: what was begun in an earlier one is void.
        self._process = 1
        self._session = 0

    @property
    def up(self) -> bool:
        return self.join_stream is not None

    # ---- its session

    def join(self) -> None:
        process = f"{self.name}-{self._process}"
        self._session += 1
        stream = Stream(
            self._where.network,
            {EXECUTOR_KEY: process},
            self._on_command,
            lambda: self._on_close(stream),
        )
        self.join_stream = stream
        self.leaving = False
        stream.open(self._where.accept_join)
        self._send(hello=pb.Hello(name=self.name, host=self.name, backends=["python"]))
        self._where.history.add("joined", process)

    def _send(self, **event: object) -> None:
        if self.join_stream is not None:
            message = pb.ExecutorEvent(**event)  # type: ignore[arg-type]
            self.join_stream.write(message.SerializeToString())

    def _on_close(self, stream: Stream) -> None:
        """The scheduler has ended its session, or the connection broke."""
        if self.join_stream is stream:
            self._where.history.add("session lost", self.name)
            self._end(lossy=True)
            self._where.later(_REJOIN_S, self.join)

    def _end(self, *, lossy: bool) -> None:
        self.join_stream = None
        self._session += 1
        for instance in self.instances.values():
            instance.end(lossy=lossy)
        self.instances.clear()

    # ---- commands

    def _on_command(self, message: bytes) -> None:
        command = pb.ExecutorCommand.FromString(message)
        kind = command.WhichOneof("command")
        if kind == "load":
            name = command.load.config.name
            number = command.load.instance
            self._where.later(_LOAD_S, self._load, number, name, self._session)
        elif kind == "unload":
            number = command.unload.instance
            instance = self.instances.pop(number, None)
            if instance is not None:
                instance.end(lossy=False)
            self._send(instance_unloaded=pb.InstanceUnloaded(instance=number))
        elif kind == "withdraw":
            self._withdraw(command.withdraw)

    def _load(self, number: int, name: str, session: int) -> None:
        if session == self._session and not self.leaving:
            process = f"{self.name}-{self._process}"
            self.instances[number] = SimulatedInstance(
                self._where, self._models[name], number, self.name, process
            )

    def _withdraw(self, command: pb.Withdraw) -> None:
        instance = self.instances.get(command.instance)
        if instance is not None and instance.withdraw(command.batch):
            self._send(withdrawn=pb.Withdrawn(instance=command.instance, batch=command.batch))

    # ---- faults

    def kill(self) -> None:
        """Its process ends at once; another one is started later."""
        stream = self.join_stream
        self._end(lossy=True)
        if stream is not None:
            stream.close(lossy=True)
        self._process += 1
        self._where.later(_RETURN_S, self.join)

    def leave(self) -> None:
        """Its process ends after the batches that it has."""
        self.leaving = True
        self._send(leaving=pb.Leaving())
        self._where.later(_LEAVE_S, self._leave, self._session)

    def _leave(self, session: int) -> None:
        if session != self._session:
            return
        if not all(instance.idle for instance in self.instances.values()):
            self._where.later(_LEAVE_S, self._leave, session)
            return
        stream = self.join_stream
        self._end(lossy=False)
        if stream is not None:
            stream.close(lossy=False)
        self._process += 1
        self._where.later(_RETURN_S, self.join)

    def crash_worker(self, instance: SimulatedInstance) -> None:
        self._send(instance_lost=instance.crash())
