"""A simulated executor: it joins the schedulers, loads instances as it is told to, ends and
returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.methods import EXECUTOR_KEY, JOIN_PATH
from nereid.pb import nereid_pb2 as pb
from tests.simulation.instance import SimulatedInstance
from tests.simulation.repository import version_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulation.models import SimulatedModel
    from tests.simulation.network import Stream
    from tests.simulation.processes import Process
    from tests.simulation.surroundings import Surroundings

_LOAD_S = (0.005, 0.1)
_REJOIN_S = (0.02, 0.5)


class SimulatedExecutor:
    """One process."""

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
        self._key = f"{name}-{number}"
        self.sessions = [
            _Session(where, self, address, self._key, models) for address in where.addresses
        ]

    def instances(self) -> list[SimulatedInstance]:
        """All that it has."""
        return [each for session in self.sessions for each in session.instances.values()]

    def start(self) -> None:
        """Join the schedulers."""
        for session in self.sessions:
            session.join()

    def leave(self) -> None:
        """Say that it will end."""
        for session in self.sessions:
            session.leave()

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        return all(each.idle for each in self.instances())

    def crash_worker(self, instance: SimulatedInstance) -> None:
        """The process of a Python model ends."""
        for session in self.sessions:
            if session.instances.get(instance.number) is instance:
                session.send(instance_lost=instance.crash())

    @property
    def joins(self) -> list[Stream]:
        """Its control streams."""
        return [each.stream for each in self.sessions if each.stream is not None]


class _Session:
    """With one scheduler."""

    def __init__(
        self,
        where: Surroundings,
        executor: SimulatedExecutor,
        address: str,
        key: str,
        models: Mapping[str, SimulatedModel],
    ) -> None:
        self._where = where
        self._executor = executor
        self._address = address
        self._key = key
        self._models = models
        self.instances: dict[int, SimulatedInstance] = {}
        self.stream: Stream | None = None
        self._leaving = False
        # What was begun in an earlier session is void.
        self._session = 0

    def join(self) -> None:
        self._session += 1
        stream = self._where.open_stream(
            self._executor.process,
            self._address,
            JOIN_PATH,
            [(EXECUTOR_KEY, self._key)],
            self._on_command,
            lambda: self._on_close(stream),
        )
        self.stream = stream
        name = self._executor.name
        self.send(hello=pb.Hello(name=name, host=name, backends=["python"]))

    def send(self, **event: object) -> None:
        if self.stream is not None:
            message = pb.ExecutorEvent(**event)  # type: ignore[arg-type]
            self.stream.write(message.SerializeToString())

    def leave(self) -> None:
        self._leaving = True
        self.send(leaving=pb.Leaving())

    def _on_close(self, stream: Stream) -> None:
        """The scheduler has ended its session, or the connection broke."""
        if self.stream is stream:
            self.stream = None
            self._session += 1
            for instance in self.instances.values():
                instance.end(lossy=True)
            self.instances.clear()
            if not self._leaving:
                self._where.later(_REJOIN_S, self.join)

    # ---- commands

    def _on_command(self, message: bytes) -> None:
        command = pb.ExecutorCommand.FromString(message)
        kind = command.WhichOneof("command")
        if kind == "load":
            self._where.later(_LOAD_S, self._load, command.load, self._session)
        elif kind == "unload":
            number = command.unload.instance
            instance = self.instances.pop(number, None)
            if instance is not None:
                instance.end(lossy=False)
            self.send(instance_unloaded=pb.InstanceUnloaded(instance=number))
        elif kind == "withdraw":
            self._withdraw(command.withdraw)
        elif kind == "recall":
            self.send(recalled=pb.Recalled(request=command.recall.request))

    def _load(self, command: pb.LoadInstance, session: int) -> None:
        if session != self._session or self._leaving:
            return
        version = version_at(command.version_path)
        if version is None:
            error = pb.ErrorStatus(code=13, message="the file cannot be loaded")
            failed = pb.InstanceFailed(instance=command.instance, error=error)
            self.send(instance_failed=failed)
            return
        self.instances[command.instance] = SimulatedInstance(
            self._where,
            self._models[command.config.name],
            command.instance,
            version,
            self._executor.name,
            self._executor.process,
            self._key,
            self._address,
        )

    def _withdraw(self, command: pb.Withdraw) -> None:
        instance = self.instances.get(command.instance)
        if instance is not None and instance.withdraw(command.batch):
            self.send(withdrawn=pb.Withdrawn(instance=command.instance, batch=command.batch))
