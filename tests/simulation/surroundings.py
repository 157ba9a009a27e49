"""What all parts of a simulation share: its loop, its randomness, its network, its history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.channel import SimulatedChannel, Stream
from tests.simulation.processes import Process

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from tests.simulation.bugs import Bugs
    from tests.simulation.history import History
    from tests.simulation.network import Network
    from tests.simulation.processes import MeshLoop
    from tests.simulation.runs import Runs
    from tests.support.rpc.call_ends import Metadata


class Surroundings:
    """addresses: of the schedulers. What a process does has to be called in it: the loop's run_in,
    spawn and deliver_at do that.
    """

    def __init__(
        self,
        loop: MeshLoop,
        choices: random.Random,
        network: Network,
        history: History,
        runs: Runs,
        bugs: Bugs,
        addresses: Sequence[str],
    ) -> None:
        self.loop = loop
        self.random = choices
        self.network = network
        self.history = history
        self.runs = runs
        self.bugs = bugs
        self.addresses = addresses

    def start_process(self, name: str) -> Process:
        """Of a service, whose name its processes have one after the other."""
        self.history.add("started", name)
        return Process(name)

    def kill(self, process: Process) -> None:
        """A process ends as by SIGKILL; the kernel ends its connections."""
        self.history.add("killed", process.name)
        self.loop.kill(process)
        self.network.end_process(process, lossy=self.random.random() < 0.5)

    def stop(self, process: Process) -> None:
        """It stands still until resume(), as by SIGSTOP."""
        self.history.add("stopped", process.name)
        self.loop.stop_process(process)
        self.network.on_stand_still(process)

    def resume(self, process: Process) -> None:
        """It goes on."""
        self.history.add("resumed", process.name)
        self.loop.resume(process)

    def open_stream(
        self,
        process: Process,
        address: str,
        path: str,
        metadata: Metadata,
        on_message: Callable[[bytes], None],
        on_close: Callable[[], None],
    ) -> Stream:
        """A stream to a scheduler, on a connection of its own, as an instance's is. on_close: it
        could not be opened, or has ended.
        """
        return Stream(self.network, process, address, path, metadata, on_message, on_close)

    def open_channel(self, process: Process, address: str, **options: Any) -> SimulatedChannel:
        """A nereid.rpc.Channel: calls and streams that share a connection."""
        return SimulatedChannel(self.network, process, address, **options)

    def later(
        self, after_s: tuple[float, float], call: Callable[..., Any], *arguments: Any
    ) -> None:
        """Call it once, after a time between these, in the process that runs."""
        self.loop.call_later(self.random.uniform(*after_s), call, *arguments)
