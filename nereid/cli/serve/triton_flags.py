"""Triton's flags that have no equivalent here, so that Triton's start scripts keep working.

Flags that tune something Nereid does not have are accepted, and a line says that they change
nothing; flags that ask for a feature that is not offered are refused with an alternative. Only
`nereid serve` accepts them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Final

from nereid.config import flags

_IGNORED: Final = "Triton's; changes nothing here"


def _ignored() -> Any:
    """A flag that is accepted with any value."""
    return flags.flag(None, _IGNORED)


def _only_false(instead: str) -> Any:
    """A flag that can only be false."""

    def parse(text: str) -> str:
        if flags.boolean(text):
            raise ValueError(f"not offered; {instead}")
        return text

    return flags.flag(None, f"only false is offered; {instead}", parse, bare="true")


_KSERVE: Final = "clients ask by KServe v2, at --http-port"


@dataclasses.dataclass(frozen=True)
class TritonFlags:
    """None for those that are not given."""

    TOPIC: ClassVar = flags.Topic.TRITON

    response_cache_byte_size: int | None = flags.flag(
        None, "older form of --cache-config=local,size=BYTES", flags.integer(1)
    )
    allow_sagemaker: str | None = _only_false(_KSERVE)
    allow_vertex_ai: str | None = _only_false(_KSERVE)

    sagemaker_port: str | None = _ignored()
    sagemaker_safe_port_range: str | None = _ignored()
    sagemaker_thread_count: str | None = _ignored()
    vertex_ai_port: str | None = _ignored()
    vertex_ai_thread_count: str | None = _ignored()
    vertex_ai_default_model: str | None = _ignored()
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
        """The names of the given flags that change nothing."""
        return [
            flags.flag_name(field)
            for field in dataclasses.fields(self)
            if field.metadata["flag"].help == _IGNORED and getattr(self, field.name) is not None
        ]
