"""All rows, by group."""

from __future__ import annotations

from functools import cache
from typing import Final

from tests.conformance.row import Row
from tests.conformance.rows import (
    drain,
    ensembles,
    grpc_control,
    grpc_infer,
    grpc_stream,
    http_control,
    http_generate,
    http_json,
    http_tensors,
    iterative,
    life_cycle,
    python_models,
    repository,
    sequence_ways,
    sequences,
    settings,
    shared_memory,
)

_MODULES: Final = (
    http_control,
    http_json,
    http_tensors,
    http_generate,
    grpc_control,
    grpc_infer,
    grpc_stream,
    repository,
    settings,
    shared_memory,
    python_models,
    iterative,
    ensembles,
    sequences,
    life_cycle,
    sequence_ways,
    drain,
)


@cache
def all_rows() -> dict[str, Row]:
    """By name."""
    rows: dict[str, Row] = {}
    for module in _MODULES:
        for row in module.rows():
            assert row.name not in rows, f"two rows are named {row.name}"
            rows[row.name] = row
    return rows


def groups(server: str) -> dict[str, list[Row]]:
    """The rows for one of SERVERS, in the order in which they are asked."""
    found: dict[str, list[Row]] = {}
    for row in all_rows().values():
        if row.server == server:
            found.setdefault(row.group, []).append(row)
    return found
