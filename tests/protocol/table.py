"""All rows, by group."""

from __future__ import annotations

from functools import cache
from typing import Final

from tests.protocol import (
    ensemble_rows,
    grpc_control_rows,
    grpc_infer_rows,
    grpc_stream_rows,
    http_control_rows,
    http_generate_rows,
    http_json_rows,
    http_tensor_rows,
    python_rows,
    repository_rows,
    settings_rows,
    shared_memory_rows,
)
from tests.protocol.row import Row

_MODULES: Final = (
    http_control_rows,
    http_json_rows,
    http_tensor_rows,
    http_generate_rows,
    grpc_control_rows,
    grpc_infer_rows,
    grpc_stream_rows,
    repository_rows,
    settings_rows,
    shared_memory_rows,
    python_rows,
    ensemble_rows,
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
