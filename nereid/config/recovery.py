"""How long a failure inside the mesh lasts: all of its times, derived from two.

One setting says how soon silence is a failure, the other how long a restart may take; both are
flags that all services share, and should be equal everywhere. docs/reference/recovery.md is the
table of what follows from them. Not here: what bounds clients (their uploads, idle connections,
deadlines), how long models may take, pauses between two attempts where they are far shorter than
a failure, and what only decides how often something is logged.
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
# To one of several schedulers, whose models its peers take over, pings are sent and given up after
# this share of the usual times.
_PEER_SHARE: Final = 0.4
# A collection of a large heap, or a moment without the CPU, is no failure.
_LEAST_SILENCE_S: Final = 0.5


class RecoveryTimes(NamedTuple):
    """Seconds. Each property says what it bounds; docs/reference/recovery.md is made of them."""

    silence_s: float = DEFAULT_SILENCE_S
    restart_s: float = DEFAULT_RESTART_S

    # ---- when silence is a failure

    @property
    def ping_after_s(self) -> float:
        """A connection between services is silent: a ping is sent."""
        return self.silence_s * 2 / 7

    @property
    def ping_reply_s(self) -> float:
        """A ping has no reply: the connection ends. A stopped Python worker is started again."""
        return self.silence_s - self.ping_after_s

    @property
    def peer_ping_after_s(self) -> float:
        """As ping_after_s, of one of several schedulers, whose models the others take over: there
        waiting costs more than giving it up wrongly. Also how often it looks whether it stood
        still itself.
        """
        return self.ping_after_s * _PEER_SHARE

    @property
    def peer_ping_reply_s(self) -> float:
        """As ping_reply_s, of one of several schedulers. Also the pause after which a scheduler
        holds that it stood still, was given up, and takes nothing back before it has seen the
        others.
        """
        return self.ping_reply_s * _PEER_SHARE

    @property
    def watchdog_s(self) -> float:
        """`nereid serve` kills a process without a heartbeat, which peers have given up by then."""
        return self.silence_s

    @property
    def orphan_s(self) -> float:
        """A request that runs, and whose gateway's link is down, is cancelled. Longer than the
        gateway may take to see that, and with time to be reached again.
        """
        return self.silence_s + self.restart_s / 10

    # ---- takeover of a lost scheduler's models

    @property
    def executor_report_s(self) -> float:
        """Instances of a session that has ended finish their batches before the executor reports to
        other schedulers what had begun.
        """
        return self.silence_s / 14

    @property
    def takeover_reports_s(self) -> float:
        """A takeover waits for the executors' reports before requests run that were sent again.
        Longer than executor_report_s.
        """
        return self.executor_report_s * 3 / 2

    @property
    def instance_stop_s(self) -> float:
        """An instance of a lost scheduler that still executes; then another one is loaded for the
        next scheduler.
        """
        return self.ping_reply_s

    @property
    def connect_s(self) -> float:
        """An instance's attempt to connect to its scheduler. Less than instance_stop_s, by which it
        must be available to the next one.
        """
        return self.silence_s * 3 / 7

    @property
    def claim_s(self) -> float:
        """A lost scheduler's model that nobody has named yet counts as about to be taken over.
        Longer than one that stood still waits for its peers.
        """
        return 2 * self.start_wait_s

    @property
    def forwarded_call_s(self) -> float:
        """Another scheduler's reply to a control call that was passed on to it. Longer than a model
        may take to say whether it is ready (5 s, as in Triton).
        """
        return 5.0 + self.peer_ping_after_s

    # ---- the start of a scheduler

    @property
    def start_wait_s(self) -> float:
        """A scheduler that starts, or stood still, waits for its peers and their executors; and
        holds requests that were sent again until executors have joined, which may have run them.
        """
        return self.silence_s * 2 / 7

    @property
    def settle_s(self) -> float:
        """No member has come for so long: models move to those that have."""
        return self.silence_s / 14

    @property
    def join_pause_s(self) -> float:
        """The longest pause between an executor's attempts to join. Less than start_wait_s."""
        return self.silence_s / 14

    @property
    def longest_dial_pause_s(self) -> float:
        """The longest pause between an instance's attempts to connect."""
        return self.ping_after_s

    # ---- restarts

    @property
    def state_s(self) -> float:
        """The state is not read at a scheduler's start, or a record not written: it goes on without
        it, and tries again.
        """
        return self.restart_s / 3

    @property
    def unserved_s(self) -> float:
        """No gateway serves the ports that `nereid serve` holds: connections there are refused."""
        return self.restart_s * 2 / 3

    @property
    def longest_restart_pause_s(self) -> float:
        """The longest pause before `nereid serve` starts a process again that ends at once; and how
        long one must have run for the next pause to be the shortest.
        """
        return self.restart_s / 3

    @property
    def move_s(self) -> float:
        """A model that passes from one scheduler to another counts as ready meanwhile."""
        return self.restart_s

    @property
    def model_call_s(self) -> float:
        """A model's own request waits for a scheduler."""
        return self.restart_s

    @property
    def abandoned_s(self) -> float:
        """A model whose scheduler was lost may go on with its batch, which may be sent again.
        Longer than a gateway waits for a scheduler.
        """
        return 2 * self.restart_s


# Of services that were given neither flag.
DEFAULT_TIMES: Final = RecoveryTimes()


def _silence(text: str) -> float:
    value = seconds(text)
    if value < _LEAST_SILENCE_S:
        raise ValueError(f"expected at least {_LEAST_SILENCE_S} seconds")
    return value


@dataclass(frozen=True, kw_only=True)
class RecoverySettings:
    """The two flags; every service's settings have them."""

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
        """What follows from them."""
        return RecoveryTimes(self.mesh_silence_secs, self.mesh_restart_secs)

    def with_keepalive(self, options: Options, *, replaceable: bool = False) -> Options:
        """The options of a connection between services, with these flags. replaceable: to one of
        several schedulers, whose models the others take over once it counts as lost.
        """
        interval_s, timeout_s = self.keepalive(replaceable=replaceable)
        return replace(options, keepalive_interval_s=interval_s, keepalive_timeout_s=timeout_s)

    def keepalive(self, *, replaceable: bool) -> tuple[float, float]:
        """After how long a silence to ping, and how long to wait for the reply."""
        times = self.recovery
        if replaceable:
            return times.peer_ping_after_s, times.peer_ping_reply_s
        return times.ping_after_s, times.ping_reply_s

    def or_restart(self, limit_s: float | None) -> float:
        """A flag's time; by default that of a restart."""
        return self.mesh_restart_secs if limit_s is None else limit_s
