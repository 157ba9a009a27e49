"""The roles of a mesh's members, from credentials or certificates, and the roles' methods."""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Final

from nereid.core.methods import (
    EXCHANGE_PATH,
    EXECUTE_PATH,
    INFER_PATH,
    JOIN_PATH,
    PEER_PATH,
    READ_STATE_PATH,
    SCHEDULER,
    TIMELINE_PATH,
    WRITE_STATE_PATH,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Role(enum.Enum):
    """Role of a member of the mesh when it calls other members."""

    GATEWAY = "gateway"
    EXECUTOR = "executor"
    SCHEDULER = "scheduler"
    CACHE = "cache"
    # A person or a script that makes control calls by hand.
    OPERATOR = "operator"


# The role at the start of a name. A number or a name may follow: executor-3, gateway01,
# executor_gpu.
_NAMED_ROLE: Final = re.compile(rf"({'|'.join(role.value for role in Role)})(?![a-z])")

# Schedulers pass on calls that concern another scheduler's models.
_CONTROL: Final = frozenset({Role.GATEWAY, Role.OPERATOR, Role.SCHEDULER})
_READINESS: Final = _CONTROL | {Role.EXECUTOR}
# Python models may call these (pb_utils.load_model) with --allow-executor-control.
_MODEL_CONTROL: Final = ("RepositoryModelLoad", "RepositoryModelUnload")
_ROLES: Final[dict[str, frozenset[Role]]] = {
    JOIN_PATH: frozenset({Role.EXECUTOR}),
    EXECUTE_PATH: frozenset({Role.EXECUTOR}),
    # Executors call this because their models send requests to other models.
    INFER_PATH: frozenset({Role.GATEWAY, Role.EXECUTOR}),
    PEER_PATH: frozenset({Role.SCHEDULER}),
    TIMELINE_PATH: _CONTROL,
    SCHEDULER + "ModelReady": _READINESS,
    **{
        SCHEDULER + method: _CONTROL
        for method in (
            "ServerReady",
            "ModelMetadata",
            "ModelConfig",
            "ModelText",
            "ModelStatistics",
            "RepositoryIndex",
            *_MODEL_CONTROL,
            "TraceSetting",
            "LogSettings",
            "Metrics",
            "Counts",
            "Facts",
            "DrainExecutor",
            "ModelTraffic",
            "ModelRollout",
        )
    },
    EXCHANGE_PATH: frozenset({Role.SCHEDULER}),
    READ_STATE_PATH: frozenset({Role.SCHEDULER}),
    WRITE_STATE_PATH: frozenset({Role.SCHEDULER}),
}


def method_roles(*, executor_control: bool = False) -> Mapping[str, frozenset[Role]]:
    """Return the roles by method; with executor_control, executors may load models."""
    if not executor_control:
        return _ROLES
    control = {SCHEDULER + method: _READINESS for method in _MODEL_CONTROL}
    return _ROLES | control


def roles_of_names(names: Iterable[str]) -> frozenset[Role]:
    """Return the roles that the DNS names in a certificate give. Only first labels count."""
    matches = (_NAMED_ROLE.match(name.lower().partition(".")[0]) for name in names)
    return frozenset(Role(match[1]) for match in matches if match is not None)
