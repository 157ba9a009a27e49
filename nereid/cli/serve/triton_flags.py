"""Flags of Triton's that start scripts hold and that no service of ours has a use for.

Those that tune what there is none of here are taken, and a line says that they change nothing;
those that ask for something which is not offered are refused with what to do instead. `nereid
serve` alone takes them: whoever starts services by hand has no script of Triton's.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from nereid.config import flags

_IDLE: Final = "Triton's; changes nothing here"


def _idle() -> Any:
    """A flag that is taken, whatever it says."""
    return flags.flag(None, _IDLE)


def _off(instead: str) -> Any:
    """A flag that can only be false."""

    def parse(text: str) -> str:
        if flags.boolean(text):
            raise ValueError(f"not offered; {instead}")
        return text

    return flags.flag(None, f"only false is offered; {instead}", parse, bare="true")


def _rate_limit(text: str) -> str:
    if text != "off":
        raise ValueError(f"not offered; {_UNLIMITED}")
    return text


_KSERVE: Final = "clients ask by KServe v2, at --http-port"
_UNLIMITED: Final = "bound what runs at once by instance_group"


@dataclasses.dataclass(frozen=True)
class TritonFlags:
    """None for those that are not given."""

    response_cache_byte_size: int | None = flags.flag(
        None, "older for --cache-config=local,size=BYTES", flags.integer(1)
    )
    rate_limit: str | None = flags.flag(None, f"only off is offered; {_UNLIMITED}", _rate_limit)
    model_namespacing: str | None = _off("give models of all repositories names of their own")
    allow_sagemaker: str | None = _off(_KSERVE)
    allow_vertex_ai: str | None = _off(_KSERVE)

    rate_limit_resource: str | None = _idle()
    sagemaker_port: str | None = _idle()
    sagemaker_safe_port_range: str | None = _idle()
    sagemaker_thread_count: str | None = _idle()
    vertex_ai_port: str | None = _idle()
    vertex_ai_thread_count: str | None = _idle()
    vertex_ai_default_model: str | None = _idle()
    pinned_memory_pool_byte_size: str | None = _idle()
    cuda_memory_pool_byte_size: str | None = _idle()
    cuda_virtual_address_size: str | None = _idle()
    min_supported_compute_capability: str | None = _idle()
    model_load_gpu_limit: str | None = _idle()
    buffer_manager_thread_count: str | None = _idle()
    enable_peer_access: str | None = _idle()
    host_policy: str | None = _idle()
    cache_directory: str | None = _idle()
    repoagent_directory: str | None = _idle()

    def without_effect(self) -> list[str]:
        """Those that were given and change nothing."""
        return [
            flags.flag_name(field)
            for field in dataclasses.fields(self)
            if field.metadata["flag"].help == _IDLE and getattr(self, field.name) is not None
        ]
