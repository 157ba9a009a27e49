"""The scheduler's RPCs by name, for both ends: protos/nereid.proto has what they carry."""

from __future__ import annotations

from typing import Final

SCHEDULER: Final = "/nereid.v1.Scheduler/"
INFER_PATH: Final = SCHEDULER + "Infer"
JOIN_PATH: Final = SCHEDULER + "Join"
EXECUTE_PATH: Final = SCHEDULER + "Execute"

# The metadata by which an Execute stream says whose it is.
INSTANCE_KEY: Final = "nereid-instance"
# Present where the instance heeds MemberControls.
CONTROLS_KEY: Final = "nereid-controls"
# Present where the instance's model can be asked whether it is ready.
READY_KEY: Final = "nereid-tells-ready"
# Present where the instance's executor tells whether the process at the stream's other end lives,
# and which batch it had begun with when it does no more.
VOUCHED_KEY: Final = "nereid-vouched"
# The metadata by which an Infer link says what memory its gateway can share.
DOMAIN_KEY: Final = "nereid-memory-domain"
