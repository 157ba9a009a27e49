"""Range of a registered region, as the parameters of a tensor describe it."""

from __future__ import annotations

from typing import Any

from nereid_gateway.core.tensors.region_ranges import RegionRange
from nereid_gateway.fronts.http.json import parser


def tensor_range(parameters: dict[str, Any]) -> RegionRange:
    """Return the range in a tensor's parameters. Raises Internal if one has a wrong kind."""
    region = parser.string_member(parameters, "shared_memory_region")
    offset = parser.as_unsigned(parameters.get("shared_memory_offset", 0), "shared_memory_offset")
    size_bytes = parser.as_unsigned(
        parameters.get("shared_memory_byte_size", 0), "shared_memory_byte_size"
    )
    return RegionRange(region, offset, size_bytes)
