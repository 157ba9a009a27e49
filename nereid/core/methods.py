"""Paths and metadata keys of the scheduler's RPCs, and paths of the cache's RPCs for its state.

protos/nereid.proto has their messages.
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

# Metadata of an executor's streams: a random number that its process made when it started. The
# number lets a process replace its own streams, and no other's.
EXECUTOR_KEY: Final = "nereid-executor"
# Metadata of an Execute stream: the instance that it belongs to.
INSTANCE_KEY: Final = "nereid-instance"
# Present if the instance supports MemberControls.
CONTROLS_KEY: Final = "nereid-controls"
# Present if the instance's model supports readiness queries.
READINESS_KEY: Final = "nereid-readiness"
# Present if the executor supervises the process at the other end of the stream. When that process
# dies, the executor reports which batch it had begun, and names the stream by this number.
CRASH_REPORTS_KEY: Final = "nereid-crash-reports"
# Present if the instance exports sequences' states, and waits for that before it is unloaded.
STATES_KEY: Final = "nereid-sequence-states"
# Present if a batch may wait at the instance while it executes another, and can be withdrawn.
WITHDRAWALS_KEY: Final = "nereid-withdrawals"
# Memory that the instance's model took: bytes by device, as in "cpu=1048576,gpu 1=4096".
MEMORY_KEY: Final = "nereid-memory"
# Metadata of an Infer link: the memory domain of its gateway (nereid.shm.segments).
SHM_NAMESPACE_KEY: Final = "nereid-shm-namespace"
# Present if an Infer link is for models' own calls, which are not sent again over another link.
MODEL_CALLS_KEY: Final = "nereid-model-calls"
# Metadata of a control call that one scheduler passes on to another, which then responds for itself
# alone.
FORWARDED_KEY: Final = "nereid-forwarded"
