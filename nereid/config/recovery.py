"""Times that decide how long a failure inside the mesh lasts, derived from two settings.

One setting is the silence after which a service counts as failed. The other is the time that a
restart may take. Both are flags of all services, and should be the same for all services.
docs/reference/recovery.md is the table of all times.

Other modules hold four kinds of times: bounds on clients (uploads, idle connections, deadlines),
bounds on the execution times of models, pauses between two attempts that are far shorter than a
failure, and intervals between log lines.
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
# Factor by which ping times are shorter for a connection to one of several schedulers. If such a
# scheduler fails, its peers take over its models, so an early decision is better.
_PEER_SHARE: Final = 0.4
# Minimum of the silence setting. A shorter silence may be a garbage collection of a large heap, or
# a moment without the CPU, and is no sign of a failure.
_MIN_SILENCE_S: Final = 0.5


class RecoveryTimes(NamedTuple):
    """All times, in seconds.

    docs/reference/recovery.md is made of the properties' docstrings. Each docstring says what
    happens when the time has passed, or what the time bounds.
    """

    silence_s: float = DEFAULT_SILENCE_S
    restart_s: float = DEFAULT_RESTART_S

    # ---- when silence is a failure

    @property
    def ping_after_s(self) -> float:
        """A connection between services that has been silent for this long is pinged."""
        return self.silence_s * 2 / 7

    @property
    def ping_reply_s(self) -> float:
        """A connection ends if a ping gets no reply in this time.

        A Python worker that has been stopped for this long is restarted.
        """
        return self.silence_s - self.ping_after_s

    @property
    def peer_ping_after_s(self) -> float:
        """A connection to one of several schedulers that has been silent for this long is pinged.

        This time is shorter than ping_after_s because peers take over the scheduler's models:
        waiting costs more than giving the scheduler up wrongly. The time is also the interval at
        which such a scheduler checks whether it stood still itself.
        """
        return self.ping_after_s * _PEER_SHARE

    @property
    def peer_ping_reply_s(self) -> float:
        """A connection to one of several schedulers ends if its ping gets no reply in this time.

        If a scheduler notices a pause of this length, it concludes that it stood still and that its
        peers gave it up. Such a scheduler takes no models back before it has seen its peers.
        """
        return self.ping_reply_s * _PEER_SHARE

    @property
    def watchdog_s(self) -> float:
        """`nereid serve` kills a process that has sent no heartbeat for this long.

        By then, the process's peers have already given it up.
        """
        return self.silence_s

    @property
    def orphan_s(self) -> float:
        """A running request is cancelled if its gateway's link has been down for this long.

        This time is longer than the gateway needs to notice the failure and to be reached again.
        """
        return self.silence_s + self.restart_s / 10

    # ---- takeover of a lost scheduler's models

    @property
    def executor_report_s(self) -> float:
        """Instances of a session that has ended may finish their batches within this time.

        After this time the executor reports to other schedulers which requests had begun.
        """
        return self.silence_s / 14

    @property
    def takeover_reports_s(self) -> float:
        """A takeover waits this long for the executors' reports before it runs requests sent again.

        This time is longer than executor_report_s.
        """
        return self.executor_report_s * 3 / 2

    @property
    def instance_stop_s(self) -> float:
        """An instance of a lost scheduler may continue to execute for this long.

        After this time another instance is loaded for the next scheduler.
        """
        return self.ping_reply_s

    @property
    def connect_s(self) -> float:
        """An instance's attempt to connect to its scheduler ends after this time.

        This time is shorter than instance_stop_s, within which the next scheduler must be able to
        get the instance.
        """
        return self.silence_s * 3 / 7

    @property
    def claim_s(self) -> float:
        """A lost scheduler's model counts as about to be taken over for at most this long.

        It counts so while no other scheduler names the model. This time is longer than the time for
        which a scheduler that stood still waits for its peers.
        """
        return 2 * self.start_wait_s

    @property
    def forwarded_call_s(self) -> float:
        """A control call that was passed on to another scheduler waits this long for its reply.

        This time is longer than a model may take to say whether it is ready (5 s, as in Triton).
        """
        return 5.0 + self.peer_ping_after_s

    # ---- the start of a scheduler

    @property
    def start_wait_s(self) -> float:
        """A scheduler that starts or stood still waits this long for peers and their executors.

        Meanwhile the scheduler holds requests that were sent again, until the executors that may
        have run these requests have joined.
        """
        return self.silence_s * 2 / 7

    @property
    def settle_s(self) -> float:
        """If no further member has joined for this long, models move to the new members."""
        return self.silence_s / 14

    @property
    def join_pause_s(self) -> float:
        """The maximum pause between an executor's attempts to join; less than start_wait_s."""
        return self.silence_s / 14

    @property
    def longest_dial_pause_s(self) -> float:
        """The maximum pause between an instance's attempts to connect."""
        return self.ping_after_s

    # ---- restarts

    @property
    def state_s(self) -> float:
        """A scheduler that cannot read or write its state tries again after this time.

        It reads the state at its start, and writes single records later. The scheduler keeps
        serving meanwhile.
        """
        return self.restart_s / 3

    @property
    def unserved_s(self) -> float:
        """A port of `nereid serve` that no gateway serves for this long refuses connections."""
        return self.restart_s * 2 / 3

    @property
    def longest_restart_pause_s(self) -> float:
        """The maximum pause before `nereid serve` restarts a process that ends at once.

        A process that has run for this long gets the shortest pause when it ends.
        """
        return self.restart_s / 3

    @property
    def move_s(self) -> float:
        """A model that moves from one scheduler to another counts as ready for this long."""
        return self.restart_s

    @property
    def model_call_s(self) -> float:
        """A request that a model makes waits this long for a scheduler."""
        return self.restart_s

    @property
    def abandoned_s(self) -> float:
        """A model whose scheduler was lost may continue to run its batch for this long.

        The batch's requests may be sent again meanwhile. This time is longer than a gateway waits
        for a scheduler.
        """
        return 2 * self.restart_s


# Times of a service if neither flag is given.
DEFAULT_TIMES: Final = RecoveryTimes()


def _silence(text: str) -> float:
    value = seconds(text)
    if value < _MIN_SILENCE_S:
        raise ValueError(f"expected at least {_MIN_SILENCE_S} seconds")
    return value


@dataclass(frozen=True, kw_only=True)
class RecoverySettings:
    """The two flags from which all times follow; every service's settings have these flags."""

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
        """Return connection options with the ping times that follow from these flags.

        replaceable: true if the connection is to one of several schedulers. When such a scheduler
        counts as lost, its peers take over its models.
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
        """Return the time that a flag gives, or the restart time if the flag is not given."""
        return self.mesh_restart_secs if limit_s is None else limit_s
