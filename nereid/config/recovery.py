"""Times that decide how long a failure inside the mesh lasts, derived from two settings.

One setting says how soon silence is a failure, the other how long a restart may take; both are
flags that all services share, and should be equal everywhere. docs/reference/recovery.md is the
table of all times. Other modules have the bounds on clients (uploads, idle connections, deadlines),
on models' execution times, pauses between two attempts that are far shorter than a failure, and
intervals between log lines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeVar

from nereid.config.flags import Topic, flag, seconds

if TYPE_CHECKING:
    from nereid.rpc.http2.limits import Limits

    Options = TypeVar("Options", bound=Limits)

DEFAULT_SILENCE_S: Final = 7.0
DEFAULT_RESTART_S: Final = 30.0
# Share of the usual times after which a connection to one of several schedulers is pinged, and
# given up: its peers take its models over.
_PEER_SHARE: Final = 0.4
# Shorter silences are no failure: they may be a garbage collection of a large heap, or a moment
# without the CPU.
_MIN_SILENCE_S: Final = 0.5


class RecoveryTimes(NamedTuple):
    """All times, in seconds.

    docs/reference/recovery.md is made of the properties' docstrings, which say what happens when a
    time has passed, or what it bounds.
    """

    silence_s: float = DEFAULT_SILENCE_S
    restart_s: float = DEFAULT_RESTART_S

    # ---- when silence is a failure

    @property
    def ping_after_s(self) -> float:
        """A connection between services that is silent for so long is pinged."""
        return self.silence_s * 2 / 7

    @property
    def ping_reply_s(self) -> float:
        """A connection whose ping has no reply ends; a stopped Python worker is started again."""
        return self.silence_s - self.ping_after_s

    @property
    def peer_ping_after_s(self) -> float:
        """A silent connection to one of several schedulers is pinged.

        Shorter than ping_after_s: peers take the scheduler's models over, so that waiting costs
        more than giving it up wrongly. Also the interval at which such a scheduler checks whether
        it stood still itself.
        """
        return self.ping_after_s * _PEER_SHARE

    @property
    def peer_ping_reply_s(self) -> float:
        """A connection to one of several schedulers whose ping has no reply ends.

        Also the pause after which a scheduler concludes that it stood still and was given up: it
        takes nothing back before it has seen the others.
        """
        return self.ping_reply_s * _PEER_SHARE

    @property
    def watchdog_s(self) -> float:
        """`nereid serve` kills a process without a heartbeat, which peers have given up by then."""
        return self.silence_s

    @property
    def orphan_s(self) -> float:
        """A running request whose gateway's link is down is cancelled.

        Longer than the gateway needs to notice that, and to be reached again.
        """
        return self.silence_s + self.restart_s / 10

    # ---- takeover of a lost scheduler's models

    @property
    def executor_report_s(self) -> float:
        """Instances of a session that has ended may finish their batches.

        Then the executor reports to other schedulers which requests had begun.
        """
        return self.silence_s / 14

    @property
    def takeover_reports_s(self) -> float:
        """A takeover waits for the executors' reports before it runs requests sent again.

        Longer than executor_report_s.
        """
        return self.executor_report_s * 3 / 2

    @property
    def instance_stop_s(self) -> float:
        """An instance of a lost scheduler may still execute.

        Then another one is loaded for the next scheduler.
        """
        return self.ping_reply_s

    @property
    def connect_s(self) -> float:
        """An instance's attempt to connect to its scheduler ends.

        Less than instance_stop_s, within which the next scheduler must be able to get the instance.
        """
        return self.silence_s * 3 / 7

    @property
    def claim_s(self) -> float:
        """A lost scheduler's model that no scheduler names yet counts as about to be taken over.

        Longer than a scheduler that stood still waits for its peers.
        """
        return 2 * self.start_wait_s

    @property
    def forwarded_call_s(self) -> float:
        """A control call that was passed on to another scheduler waits for its reply.

        Longer than a model may take to say whether it is ready (5 s, as in Triton).
        """
        return 5.0 + self.peer_ping_after_s

    # ---- the start of a scheduler

    @property
    def start_wait_s(self) -> float:
        """A scheduler that starts, or stood still, waits for its peers and their executors.

        It holds requests that were sent again until executors have joined, which may have run them.
        """
        return self.silence_s * 2 / 7

    @property
    def settle_s(self) -> float:
        """Models move to new members once no other member has come for so long."""
        return self.silence_s / 14

    @property
    def join_pause_s(self) -> float:
        """Bound of the pause between an executor's attempts to join; less than start_wait_s."""
        return self.silence_s / 14

    @property
    def longest_dial_pause_s(self) -> float:
        """Bound of the pause between an instance's attempts to connect."""
        return self.ping_after_s

    # ---- restarts

    @property
    def state_s(self) -> float:
        """A scheduler whose state cannot be read at its start, or a record written, goes on.

        It tries again later.
        """
        return self.restart_s / 3

    @property
    def unserved_s(self) -> float:
        """Ports of `nereid serve` that no gateway serves for so long refuse connections."""
        return self.restart_s * 2 / 3

    @property
    def longest_restart_pause_s(self) -> float:
        """Bound of the pause before `nereid serve` restarts a process that ends at once.

        A process that has run for so long has the shortest pause next time.
        """
        return self.restart_s / 3

    @property
    def move_s(self) -> float:
        """A model that moves from one scheduler to another counts as ready for so long."""
        return self.restart_s

    @property
    def model_call_s(self) -> float:
        """A request that a model makes waits for a scheduler."""
        return self.restart_s

    @property
    def abandoned_s(self) -> float:
        """A model whose scheduler was lost may go on with its batch, which may be sent again.

        Longer than a gateway waits for a scheduler.
        """
        return 2 * self.restart_s


# Times of services that were given neither flag.
DEFAULT_TIMES: Final = RecoveryTimes()


def _silence(text: str) -> float:
    value = seconds(text)
    if value < _MIN_SILENCE_S:
        raise ValueError(f"expected at least {_MIN_SILENCE_S} seconds")
    return value


@dataclass(frozen=True, kw_only=True)
class RecoverySettings:
    """The two flags that all times follow from; every service's settings have them."""

    TOPIC: ClassVar = Topic.MESH

    mesh_silence_secs: float = flag(
        DEFAULT_SILENCE_S,
        "how soon silence is a failure: services ping each other, and one that has said nothing for"
        " so long counts as lost; one of several schedulers after two fifths of it",
        _silence,
    )
    mesh_restart_secs: float = flag(
        DEFAULT_RESTART_S,
        "how long a restart may take: requests wait for a scheduler, or for an executor with their"
        " model, and instances stay loaded for the next scheduler",
        seconds,
    )

    @property
    def recovery(self) -> RecoveryTimes:
        """All times that follow from the two flags."""
        return RecoveryTimes(self.mesh_silence_secs, self.mesh_restart_secs)

    def with_keepalive(self, options: Options, *, replaceable: bool = False) -> Options:
        """Return the options of a connection between services, with the times of these flags.

        replaceable: the connection is to one of several schedulers, whose models its peers take
        over once it counts as lost.
        """
        interval_s, timeout_s = self.keepalive(replaceable=replaceable)
        return replace(options, keepalive_interval_s=interval_s, keepalive_timeout_s=timeout_s)

    def keepalive(self, *, replaceable: bool) -> tuple[float, float]:
        """Return the silence before a ping and the time to wait for its reply, in seconds."""
        times = self.recovery
        if replaceable:
            return times.peer_ping_after_s, times.peer_ping_reply_s
        return times.ping_after_s, times.ping_reply_s

    def or_restart(self, limit_s: float | None) -> float:
        """Return a flag's time, or that of a restart if the flag is not given."""
        return self.mesh_restart_secs if limit_s is None else limit_s
