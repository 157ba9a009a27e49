"""Loads of Python models and ensembles: why they are refused, instances that come and go, reshape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import prod
from typing import Any, Final

from tests.conformance.exchange import Http
from tests.conformance.life_cycle_repository import (
    ENSEMBLES,
    FAILING,
    UNREADABLE,
    WITHOUT_VERSION,
)
from tests.conformance.row import Row, grouped, post, row, without_poll_reasons

# That of the repository.
_DIRECTORY: Final = re.compile(r"/\S+/(?=\w+/(?:1|warmup)/)")


def _load(name: str, config: Any = None) -> Http:
    document = {"parameters": {"config": json.dumps(config)}} if config else None
    return post(f"repository/models/{name}/load", document)


def _infer(name: str, shape: list[int], version: str = "", tensor: str = "X") -> Http:
    target = f"models/{name}" + (f"/versions/{version}" if version else "")
    data = [0.0] * prod(shape)
    inputs = [{"name": tensor, "datatype": "FP32", "shape": shape, "data": data}]
    return post(f"{target}/infer", {"inputs": inputs})


def _without_paths(response: Any) -> Any:
    """The directories that the servers have their repositories in differ."""
    if isinstance(response, dict) and isinstance(response.get("json"), dict):
        error = response["json"].get("error")
        if isinstance(error, str):
            response["json"]["error"] = _DIRECTORY.sub("", error)
    return without_poll_reasons(response)


def _refused() -> Iterator[Row]:
    for name in (*UNREADABLE, *WITHOUT_VERSION, *FAILING):
        ready = Http("GET", f"/v2/models/{name}/ready")
        yield row(name, _load(name), ready, _infer(name, [1]), view=_without_paths)


def _instances() -> Iterator[Row]:
    def with_groups(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
        texts = [
            {"name": each, "data_type": "TYPE_STRING", "dims": [1]} for each in ("EVENTS", "SEEN")
        ]
        number = {"data_type": "TYPE_FP32", "dims": [1]}
        return {
            "backend": "python",
            "input": [{"name": "X", **number}],
            "output": [{"name": "Y", **number}, *texts],
            "instance_group": [{"kind": "KIND_CPU", **each} for each in groups],
            **more,
        }

    # All but the first load change instances alone.
    updates: dict[str, list[dict[str, Any]]] = {
        "one": [{"count": 1}],
        "three": [{"count": 3}],
        "two": [{"count": 2}],
        "four": [{"count": 4}],
        "renamed": [{"count": 4, "name": "other"}],
        "split": [{"count": 2}, {"count": 3, "name": "more"}],
        "gpus": [{"count": 9, "gpus": [1]}],
        "after": [{"count": 1}],
    }
    for title, groups in updates.items():
        yield row(
            f"instances-{title}",
            _load("counted", with_groups(*groups)),
            _infer("counted", [1]),
            Http("GET", "/v2/models/counted/config"),
            view=_instance_view,
        )
    policies: dict[str, Any] = {
        "latest": {"latest": {"num_versions": 1}},
        "two": {"latest": {"num_versions": 2}},
        "specific": {"specific": {"versions": [1, 3]}},
        "all": {"all": {}},
        "some": {"specific": {"versions": [2, 9]}},
        "none": {"specific": {"versions": [9]}},
        "zero": {"latest": {"num_versions": 0}},
        "third": {"specific": {"versions": [3]}},
    }
    for title, policy in policies.items():
        yield row(
            f"versions-{title}",
            _load("versions", with_groups({"count": 1}, version_policy=policy)),
            *(_infer("versions", [1], version) for version in ("", "1", "2", "3")),
            Http("GET", "/v2/models/versions"),
        )


def _instance_view(response: Any) -> Any:
    """Of the configuration the groups."""
    document = response.get("json") if isinstance(response, dict) else None
    if isinstance(document, dict) and "instance_group" in document:
        groups = document["instance_group"]
        return [[each[key] for key in ("name", "kind", "count")] for each in groups]
    return response


def _reshape() -> Iterator[Row]:
    for name, shape in {
        "reshaped": [2, 4],
        "reshaped_batched": [3, 2, 4],
        "reshaped_batched_away": [3, 1],
        "reshaped_variable": [2, 4],
    }.items():
        yield row(name, _load(name), _infer(name, shape), _infer(name, [8]))
    for name in ENSEMBLES:
        # Of ensembles that cannot be loaded Nereid's index says more.
        infer = (_infer(name, [2, 4], tensor="A"),) if name in ("seen", "own") else ()
        yield row(f"ensemble-{name}", _load(name), *infer)
    for name in ("warm_extra", "warm_other"):
        yield row(name, _load(name), _infer(name, [1]), view=_without_paths)


def rows() -> Iterator[Row]:
    for part in (_refused, _instances, _reshape):
        yield from grouped("life-cycle", part(), server="life-cycle")
