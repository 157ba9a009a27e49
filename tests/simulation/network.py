"""The network of a simulated mesh: connections that lose no order and nothing else.

Latency comes by the seed, and so do the faults that others ask for: wires that stall, connections
that break at both ends, each at its own time, pairs of hosts that cannot reach each other. What is
sent over a connection between such hosts arrives when they can, unless an end has given the
connection up by then: each has the product's own keepalive.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from nereid.rpc.grpc.handlers import HandlerTasks, routes_of
from nereid.rpc.grpc.status import ConnectionLostError, Status
from nereid.rpc.http2.keepalive import TIMERS, Keepalive, KeepaliveAction

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from nereid.rpc import Handlers
    from tests.simulation.processes import MeshLoop, Process
    from tests.support.rpc.call_ends import ClientStream, ServerCall

LATENCY_S: Final = (0.0002, 0.0015)
# Of services by default (nereid.config.recovery): when to ping, and how long to wait then.
KEEPALIVE_S: Final = (2.0, 5.0)


class Wire:
    """One direction of a connection."""

    def __init__(self, network: Network, source: Process, destination: Process) -> None:
        self._loop = network.loop
        self._uniform = network.random.uniform
        self._destination = destination
        self.pair = source.name, destination.name
        # What leaves at one time arrives at one time.
        self._flight: deque[list[Callable[[], None]]] = deque()
        self._sent_s = -1.0
        self._last_s = 0.0
        self._stalled_until_s = 0.0
        # While the hosts cannot reach each other: what was sent meanwhile.
        self._held: list[Callable[[], None]] | None = None
        # Of the end that it leads to, while that has reason to look.
        self.keepalive: Keepalive | None = None
        if network.is_blocked(self.pair):
            self._held = []

    def send(self, arrive: Callable[[], None]) -> None:
        """arrive: called when it is at the other end, after all that was sent before it."""
        if self._held is not None:
            self._held.append(arrive)
            return
        now_s = self._loop.time()
        if now_s == self._sent_s and self._flight:
            self._flight[-1].append(arrive)
            return
        self._sent_s = now_s
        due_s = now_s + self._uniform(*LATENCY_S)
        self._last_s = max(due_s, self._last_s, self._stalled_until_s)
        self._flight.append([arrive])
        self._loop.deliver_at(self._last_s, self._destination, self._arrive)

    @property
    def is_disturbed(self) -> bool:
        """Whether what is sent now takes longer than it should."""
        return self._held is not None or self._stalled_until_s > self._loop.time()

    def stall(self, duration_s: float) -> None:
        """Hold back what is sent from now on."""
        self._stalled_until_s = self._loop.time() + duration_s
        self._sent_s = -1.0

    def cut(self) -> None:
        """Lose what is on its way."""
        for each in self._flight:
            each.clear()
        self._sent_s = -1.0
        if self._held is not None:
            self._held.clear()

    def hold(self) -> None:
        """Nothing gets through."""
        if self._held is None:
            self._held = []

    def release(self) -> None:
        """It gets through again, with what was sent meanwhile."""
        held, self._held = self._held, None
        for each in held or ():
            self.send(each)

    def _arrive(self) -> None:
        if self.keepalive is not None:
            self.keepalive.received = True
        for arrive in self._flight.popleft():
            arrive()


class Listener:
    """A server at an address."""

    def __init__(
        self,
        process: Process,
        handlers: Handlers,
        keepalive_s: tuple[float, float],
    ) -> None:
        self.process = process
        self.routes = routes_of(handlers)
        self.tasks = HandlerTasks()
        self.keepalive_s: tuple[float | None, float] = keepalive_s


class Network:
    """Where connections are made."""

    def __init__(
        self,
        loop: MeshLoop,
        choices: random.Random,
        on_lost: Callable[[Process], None] = lambda _: None,
    ) -> None:
        """on_lost: called with the client of each connection that is lost at an end."""
        self.loop = loop
        self.random = choices
        self.on_lost = on_lost
        self._listeners: dict[str, Listener] = {}
        # Pairs of hosts of which the first cannot reach the second.
        self._blocked: dict[tuple[str, str], int] = {}
        self.connections: dict[Connection, None] = {}

    # ---- servers

    def listen(
        self,
        process: Process,
        address: str,
        handlers: Handlers,
        keepalive_s: tuple[float, float] = KEEPALIVE_S,
    ) -> None:
        """Serve at an address, in place of who served there before."""
        self._listeners[address] = Listener(process, handlers, keepalive_s)

    async def stop_listening(self, process: Process) -> None:
        """End what a process serves, and the connections there."""
        for address, listener in list(self._listeners.items()):
            if listener.process is process:
                del self._listeners[address]
                for each in list(self.connections):
                    if each.listener is listener:
                        each.close_at_server()
                await listener.tasks.close()

    def listener(self, address: str) -> Listener | None:
        """Who serves there: a process that lives, though it may stand still."""
        listener = self._listeners.get(address)
        return listener if listener is not None and listener.process.alive else None

    # ---- faults

    def is_blocked(self, pair: tuple[str, str]) -> bool:
        """Whether the first host cannot reach the second."""
        return pair in self._blocked

    def block(self, pair: tuple[str, str]) -> None:
        """The first host cannot reach the second from now on."""
        self._blocked[pair] = self._blocked.get(pair, 0) + 1
        for connection in self.connections:
            connection.follow(pair)

    def unblock(self, pair: tuple[str, str]) -> None:
        """It can again, unless something else keeps it from that."""
        self._blocked[pair] -= 1
        if not self._blocked[pair]:
            del self._blocked[pair]
        for connection in list(self.connections):
            connection.follow(pair)

    def on_stand_still(self, process: Process) -> None:
        """A process stands still: the other ends of its connections may notice that."""
        for connection in self.connections:
            if process in (connection.client, connection.listener.process):
                connection.watch()

    def end_process(self, process: Process, *, lossy: bool) -> None:
        """It was killed; the kernel ends its connections. lossy: what it sent last is lost."""
        for connection in list(self.connections):
            if connection.client is process:
                connection.close_at_client(lossy=lossy)
            elif connection.listener.process is process:
                connection.close_at_server(lossy=lossy)

    def connections_of(self, process: Process) -> list[Connection]:
        """To it and from it."""
        return [
            each for each in self.connections if process in (each.client, each.listener.process)
        ]


class Connection:
    """One that is established. Each end sees by itself that it has ended."""

    def __init__(
        self,
        network: Network,
        client: Process,
        listener: Listener,
        keepalive_s: tuple[float | None, float],
        on_lost: Callable[[], None],
    ) -> None:
        """on_lost: the client's end is gone."""
        self._network = network
        self._loop = network.loop
        self.client, self.listener = client, listener
        self.client_name = client.name
        self.routes, self.tasks = listener.routes, listener.tasks
        self.up = Wire(network, client, listener.process)
        self.down = Wire(network, listener.process, client)
        self._on_lost = on_lost
        self.client_open = self.server_open = True
        # By number; at each end those that have not ended there.
        self.streams: dict[int, ClientStream] = {}
        self.calls: dict[int, ServerCall] = {}
        self._client_keepalive_s = keepalive_s
        self.server_keepalive_s = listener.keepalive_s
        network.connections[self] = None
        if network.is_blocked(self.up.pair) or network.is_blocked(self.down.pair):
            self.watch()

    @property
    def lost(self) -> bool:
        """Whether an end has ended it."""
        return not (self.client_open and self.server_open)

    # ---- faults

    def break_off(self, *, lossy: bool) -> None:
        """It breaks; lossy: with what was on its way."""
        if lossy:
            self.up.cut()
            self.down.cut()
        self.up.send(self._lose_at_server)
        self.down.send(self._lose_at_client)

    def stall(self, duration_s: float, *, up: bool) -> None:
        """Hold back what is sent in one direction from now on."""
        (self.up if up else self.down).stall(duration_s)
        self.watch()

    def follow(self, pair: tuple[str, str]) -> None:
        """Whether a pair of hosts can reach each other has changed."""
        for wire in (self.up, self.down):
            if wire.pair == pair:
                if self._network.is_blocked(pair):
                    wire.hold()
                    self.watch()
                else:
                    wire.release()

    # ---- its ends

    def close_at_client(self, *, lossy: bool = False) -> None:
        """The client's end is closed, or its process has ended."""
        if self.client_open:
            if lossy:
                self.up.cut()
            self.up.send(self._lose_at_server)
            self._lose_at_client()

    def close_at_server(self, *, lossy: bool = False) -> None:
        """As close_at_client, at the other end."""
        if self.server_open:
            if lossy:
                self.down.cut()
            self.down.send(self._lose_at_client)
            self._lose_at_server()

    def _lose_at_client(self) -> None:
        if not self.client_open:
            return
        self.client_open = False
        self._network.on_lost(self.client)
        self._forget_if_over()
        self.up.send(self._lose_at_server)
        if not self.client.alive:
            return
        self._on_lost()
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.close(ConnectionLostError(Status.UNAVAILABLE, "the connection was lost"))

    def _lose_at_server(self) -> None:
        if not self.server_open:
            return
        self.server_open = False
        self._network.on_lost(self.client)
        self._forget_if_over()
        self.down.send(self._lose_at_client)
        if not self.listener.process.alive:
            return
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call.cancel()

    def _forget_if_over(self) -> None:
        if not (self.client_open or self.server_open):
            self._network.connections.pop(self, None)

    # ---- keepalive

    def watch(self) -> None:
        """The other end may be silent: look, as long as that may be so."""
        if self.up.keepalive is None and self.server_open:
            self._watch(self.listener.process, self.up, self.down, self.server_keepalive_s)
        if self.down.keepalive is None and self.client_open:
            self._watch(self.client, self.down, self.up, self._client_keepalive_s)

    def _watch(
        self, process: Process, wire: Wire, other: Wire, times_s: tuple[float | None, float]
    ) -> None:
        """wire: to this process' end; other: from it."""
        interval_s, timeout_s = times_s
        if interval_s is None:
            return
        loop = self._loop
        keepalive = wire.keepalive = Keepalive(interval_s, timeout_s, when_idle=True)
        step_s = min(interval_s, timeout_s) / TIMERS
        last_s = loop.time()

        def on_timer() -> None:
            nonlocal last_s
            is_open = self.server_open if wire is self.up else self.client_open
            if not is_open:
                wire.keepalive = None
                return
            now_s = loop.time()
            received = keepalive.received
            action = keepalive.on_timer(now_s, now_s - last_s, in_use=True)
            last_s = now_s
            if action is KeepaliveAction.SEND_PING:
                other.send(lambda: wire.send(_nothing))
            elif action is KeepaliveAction.GIVE_UP:
                wire.keepalive = None
                if wire is self.up:
                    self.close_at_server()
                else:
                    self.close_at_client()
                return
            if received and not self._is_disturbed():
                wire.keepalive = None
            else:
                loop.call_later(step_s, on_timer)

        loop.run_in(process, loop.call_later, step_s, on_timer)

    def _is_disturbed(self) -> bool:
        if self.client.stands_still or self.listener.process.stands_still:
            return True
        return self.up.is_disturbed or self.down.is_disturbed


def _nothing() -> Any:
    pass
