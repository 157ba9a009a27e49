"""Paths and metadata keys of the RPCs of scheduler and cache (see protos/nereid.proto)."""

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

# On an executor's streams: a random number that its process chose. A new stream replaces an earlier
# stream only if both have the same number.
EXECUTOR_KEY: Final = "nereid-executor"
# On an Execute stream: the number of its instance.
INSTANCE_KEY: Final = "nereid-instance"
# Present if the instance supports MemberControls.
CONTROLS_KEY: Final = "nereid-controls"
# Present if the instance's model supports readiness queries.
READINESS_KEY: Final = "nereid-readiness"
# Present if the executor supervises the process at the other end. When the process dies, the
# executor reports the batch in progress. This number names the stream in the report.
CRASH_REPORTS_KEY: Final = "nereid-crash-reports"
# Present if the instance exports its sequences' states, and so waits for that before an unload.
STATES_KEY: Final = "nereid-sequence-states"
# Present if the instance can hold a second batch, which can be withdrawn.
WITHDRAWALS_KEY: Final = "nereid-withdrawals"
# Present if a confined process gets the connection. The connection has no other stream, and the
# stream no shared memory.
CONFINED_KEY: Final = "nereid-confined"
# Memory of the instance's model: bytes by device, for example "cpu=1048576,gpu 1=4096".
MEMORY_KEY: Final = "nereid-memory"
# On an Infer link: the memory domain of its gateway (nereid.shm.segments).
SHM_NAMESPACE_KEY: Final = "nereid-shm-namespace"
# Present if an Infer link is for calls of models, which are not sent again over another link.
MODEL_CALLS_KEY: Final = "nereid-model-calls"
# Present on an Infer link of a gateway that checks its clients' rights.
ACCESS_CONTROL_KEY: Final = "nereid-access-control"
# On a forwarded control call: the receiver responds only for itself.
FORWARDED_KEY: Final = "nereid-forwarded"
