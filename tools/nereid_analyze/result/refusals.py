"""Requests that a model accepts now, and would refuse with another configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def refusals(before: Mapping[str, Any], after: Mapping[str, Any], sent_rows: int) -> Iterator[str]:
    """Yield the kinds of requests; sent_rows: the largest request that is known, 0 if none is."""
    yield from _rows(before, after, sent_rows)
    inputs = {entry["name"]: entry for entry in after.get("input") or ()}
    for entry in before.get("input") or ():
        other = inputs.pop(entry["name"], None)
        if other is None:
            yield f"requests with an input '{entry['name']}'"
        else:
            yield from _tensors(entry, other)
    for name, entry in inputs.items():
        if not entry.get("optional"):
            yield f"requests without an input '{name}'"
    outputs = {entry["name"] for entry in after.get("output") or ()}
    for entry in before.get("output") or ():
        if entry["name"] not in outputs:
            yield f"requests for an output '{entry['name']}'"


def _rows(before: Mapping[str, Any], after: Mapping[str, Any], sent_rows: int) -> Iterator[str]:
    most, fewer = int(before.get("max_batch_size") or 0), int(after.get("max_batch_size") or 0)
    if (most > 0) != (fewer > 0):
        dimension = "without the batch dimension" if fewer else "with a batch dimension"
        yield f"all requests as they are now, {dimension}"
    elif fewer < most:
        rows = f"{most} rows" if fewer + 1 == most else f"{fewer + 1} to {most} rows"
        known = f"; the largest known batch has {sent_rows}" if sent_rows else ""
        yield f"requests of {rows}{known}"


def _tensors(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    name = before["name"]
    if after.get("data_type") != before.get("data_type"):
        yield f"'{name}' as {before.get('data_type')}: {after.get('data_type')} only"
    dims, own = _dims(after), _dims(before)
    if len(dims) != len(own) or any(
        size not in (-1, old) for size, old in zip(dims, own, strict=True)
    ):
        yield f"'{name}' of shape {own} where it is not {dims}"


def _dims(tensor: Mapping[str, Any]) -> list[int]:
    return [int(size) for size in tensor.get("dims") or ()]
