"""Puts a candidate's values into a configuration, in the form of Triton's JSON."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, Final

from nereid_analyze.space.candidate import DELAY, INSTANCES, MAX_BATCH, PREFERRED, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

# OFF switches dynamic batching (DELAY) off. UNSET leaves PREFERRED or a parameter out.
OFF: Final = -1
UNSET: Final = "unset"
_PARAMETERS: Final = "parameters."


def overridden(
    config: Mapping[str, Any], values: Mapping[str, Value], *, cpu_only: bool = False
) -> dict[str, Any]:
    """Return the configuration with other values; values: maps a setting's name to its value."""
    document: dict[str, Any] = copy.deepcopy(dict(config))
    # Set whole fields first, because single values may lie within them.
    for name, value in sorted(values.items(), key=lambda item: "." in item[0]):
        _set(document, name, value)
    if MAX_BATCH in values:
        _fit_batch_sizes(document)
    if cpu_only and document.get("instance_group"):
        document["instance_group"] = [
            {**group, "kind": "KIND_CPU", "gpus": []} for group in document["instance_group"]
        ]
    return document


def _set(config: dict[str, Any], name: str, value: Value) -> None:
    if name == INSTANCES:
        groups = config.get("instance_group") or [{}]
        config["instance_group"] = [{**groups[0], "count": value}, *groups[1:]]
    elif name == MAX_BATCH:
        config[MAX_BATCH] = value
    elif name == DELAY:
        if value == OFF:
            config.pop("dynamic_batching", None)
            return
        batching = dict(config.get("dynamic_batching") or {})
        config["dynamic_batching"] = {**batching, "max_queue_delay_microseconds": value}
    elif name == PREFERRED:
        _set_preferred(config, value)
    elif name.startswith(_PARAMETERS):
        parameters = dict(config.get("parameters") or {})
        parameters.pop(name.removeprefix(_PARAMETERS), None)
        if value != UNSET:
            parameters[name.removeprefix(_PARAMETERS)] = {"string_value": str(value)}
        config["parameters"] = parameters
    else:
        whole = json.loads(str(value))
        present = config.get(name)
        if isinstance(whole, dict) and isinstance(present, dict):
            # As in Model Analyzer, nested fields that the value does not name keep their values.
            whole = {**present, **whole}
        config[name] = whole


def _set_preferred(config: dict[str, Any], value: Value) -> None:
    batching = config.get("dynamic_batching")
    if batching is None:
        return
    most = int(config.get(MAX_BATCH) or 0)
    sizes: list[int] = []
    if isinstance(value, tuple):
        sizes = [size for size in value if size <= most]
    elif value == "half" and most > 1:
        sizes = [most // 2, most]
    elif value == "quarter" and most > 3:
        sizes = [most // 4, most // 2, most]
    config["dynamic_batching"] = {**batching, "preferred_batch_size": sizes}


def _fit_batch_sizes(config: dict[str, Any]) -> None:
    """Drop or lower sizes above max_batch_size, which the server would refuse."""
    most = int(config[MAX_BATCH])
    batching = config.get("dynamic_batching")
    if batching and batching.get("preferred_batch_size"):
        sizes = [size for size in batching["preferred_batch_size"] if size <= most]
        config["dynamic_batching"] = {**batching, "preferred_batch_size": sizes}
    if config.get("model_warmup"):
        config["model_warmup"] = [
            {**sample, "batch_size": min(sample.get("batch_size", 1), most)}
            for sample in config["model_warmup"]
        ]
