"""Times that decide how long a failure inside the mesh lasts, derived from two settings.

One setting says after how much silence a service counts as failed, the other how long a restart may
take. Both are flags that all services share, and they should be equal on all services.
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
# Factor for the ping times of a connection to one of several schedulers. These times are shorter
# than usual because the scheduler's peers take over its models.
_PEER_SHARE: Final = 0.4
# Shorter silences are no failure: a garbage collection of a large heap, or a moment without the
# CPU, may cause them.
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
        """A connection whose ping has no reply ends; a stopped Python worker is restarted."""
        return self.silence_s - self.ping_after_s

    @property
    def peer_ping_after_s(self) -> float:
        """A silent connection to one of several schedulers is pinged.

        This time is shorter than ping_after_s because peers take over the scheduler's models:
        waiting costs more than giving the scheduler up wrongly. It is also the interval at which
        such a scheduler checks whether it stood still itself.
        """
        return self.ping_after_s * _PEER_SHARE

    @property
    def peer_ping_reply_s(self) -> float:
        """A connection to one of several schedulers ends if its ping gets no reply in this time.

        It is also the pause after which a scheduler concludes that it stood still and that its
        peers gave it up. Such a scheduler takes no models back before it has seen its peers.
        """
        return self.ping_reply_s * _PEER_SHARE

    @property
    def watchdog_s(self) -> float:
        """`nereid serve` kills a process without a heartbeat; its peers gave it up already."""
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
        """A lost scheduler's model that no scheduler names yet counts as about to be taken over.

        This time is longer than a scheduler that stood still waits for its peers.
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

        Meanwhile it holds requests that were sent again, until the executors that may have run them
        have joined.
        """
        return self.silence_s * 2 / 7

    @property
    def settle_s(self) -> float:
        """Models move to new members once no other member has joined for this long."""
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
        """A scheduler that cannot read its state at start, or cannot write a record, tries again.

        It keeps serving meanwhile.
        """
        return self.restart_s / 3

    @property
    def unserved_s(self) -> float:
        """Ports of `nereid serve` refuse connections after no gateway served them this long."""
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
        """A model whose scheduler was lost may continue its batch, which may be sent again.

        This time is longer than a gateway waits for a scheduler.
        """
        return 2 * self.restart_s


# The times of a service for which neither flag is given.
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
        """Return the options of a connection between services with these flags' times filled in.

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
