"""Flags of Triton that `nereid serve` accepts for start scripts, and that change nothing."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Final

from nereid.config import flags

_IGNORED: Final = "Triton's; changes nothing here"


def _ignored() -> Any:
    return flags.flag(None, _IGNORED)


@dataclasses.dataclass(frozen=True)
class TritonFlags:
    """Values of Triton's flags; `None` for a flag that is not given."""

    TOPIC: ClassVar = flags.Topic.TRITON

    response_cache_byte_size: int | None = flags.flag(
        None, "older form of --cache-config=local,size=BYTES", flags.integer(1)
    )
    pinned_memory_pool_byte_size: str | None = _ignored()
    cuda_memory_pool_byte_size: str | None = _ignored()
    cuda_virtual_address_size: str | None = _ignored()
    min_supported_compute_capability: str | None = _ignored()
    model_load_gpu_limit: str | None = _ignored()
    buffer_manager_thread_count: str | None = _ignored()
    enable_peer_access: str | None = _ignored()
    host_policy: str | None = _ignored()
    cache_directory: str | None = _ignored()
    repoagent_directory: str | None = _ignored()

    def without_effect(self) -> list[str]:
        """Return the names of the given flags that change nothing."""
        return [
            flags.flag_name(field)
            for field in dataclasses.fields(self)
            if field.metadata["flag"].help == _IGNORED and getattr(self, field.name) is not None
        ]
