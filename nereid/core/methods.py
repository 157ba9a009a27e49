"""Paths and metadata keys of the scheduler's RPCs, and paths of the cache's RPCs for its state.

protos/nereid.proto defines the messages.
"""

from __future__ import annotations

from typing import Final

SCHEDULER: Final = "/nereid.v1.Scheduler/"
INFER_PATH: Final = SCHEDULER + "Infer"
JOIN_PATH: Final = SCHEDULER + "Join"
EXECUTE_PATH: Final = SCHEDULER + "Execute"
PEER_PATH: Final = SCHEDULER + "Peer"
TIMELINE_PATH: Final = SCHEDULER + "Timeline"
EXCHANGE_PATH: Final = "/nereid.v1.Cache/Exchange"
READ_STATE_PATH: Final = "/nereid.v1.Cache/ReadState"
WRITE_STATE_PATH: Final = "/nereid.v1.Cache/WriteState"

# Metadata of an executor's streams: a random number that the executor's process chose when it
# started. A new stream with this number replaces the same process's earlier stream. A stream of
# another process cannot be replaced.
EXECUTOR_KEY: Final = "nereid-executor"
# Metadata of an Execute stream: the number of the instance that the stream belongs to.
INSTANCE_KEY: Final = "nereid-instance"
# Present if the instance supports MemberControls.
CONTROLS_KEY: Final = "nereid-controls"
# Present if the instance's model supports readiness queries.
READINESS_KEY: Final = "nereid-readiness"
# Present if the executor supervises the process at the other end of the stream. When that process
# dies, the executor reports the batch that the process had begun. The report names the stream by
# this number.
CRASH_REPORTS_KEY: Final = "nereid-crash-reports"
# Present if the instance exports the states of its sequences. The instance then waits for the
# export before it is unloaded.
STATES_KEY: Final = "nereid-sequence-states"
# Present if the instance can hold a batch while it executes another one, and if a held batch can be
# withdrawn.
WITHDRAWALS_KEY: Final = "nereid-withdrawals"
# Memory that the instance's model uses: bytes by device, for example "cpu=1048576,gpu 1=4096".
MEMORY_KEY: Final = "nereid-memory"
# Metadata of an Infer link: the memory domain of its gateway (nereid.shm.segments).
SHM_NAMESPACE_KEY: Final = "nereid-shm-namespace"
# Present if an Infer link is for calls that models make. These calls are not sent again over
# another link.
MODEL_CALLS_KEY: Final = "nereid-model-calls"
# Metadata of a control call that a scheduler forwards to another one. The receiver then responds
# only for itself.
FORWARDED_KEY: Final = "nereid-forwarded"
