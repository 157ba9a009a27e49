"""A model's configuration with a candidate's values in it. Pure: documents in and out, as Triton's
JSON has them.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, Final

from nereid_analyze.space.candidate import DELAY, INSTANCES, MAX_BATCH, PREFERRED, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

# Of DELAY: no dynamic batching at all. Of PREFERRED and parameters: not written.
OFF: Final = -1
UNSET: Final = "unset"
_PARAMETERS: Final = "parameters."


def overridden(
    config: Mapping[str, Any], values: Mapping[str, Value], *, cpu_only: bool = False
) -> dict[str, Any]:
    """values: by the settings' names, those that differ from what the configuration has."""
    made: dict[str, Any] = copy.deepcopy(dict(config))
    # Whole fields first: single ones may be within them.
    for name, value in sorted(values.items(), key=lambda each: "." in each[0]):
        _set(made, name, value)
    if MAX_BATCH in values:
        _fit_batch_sizes(made)
    if cpu_only and made.get("instance_group"):
        made["instance_group"] = [
            {**group, "kind": "KIND_CPU", "gpus": []} for group in made["instance_group"]
        ]
    return made


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
            # As Model Analyzer: what is not named stays.
            whole = {**present, **whole}
        config[name] = whole


def _set_preferred(config: dict[str, Any], value: Value) -> None:
    batching = config.get("dynamic_batching")
    if batching is None:
        return
    most = int(config.get(MAX_BATCH) or 0)
    sizes: list[int] = []
    if isinstance(value, tuple):
        sizes = [each for each in value if each <= most]
    elif value == "half" and most > 1:
        sizes = [most // 2, most]
    elif value == "quarter" and most > 3:
        sizes = [most // 4, most // 2, most]
    config["dynamic_batching"] = {**batching, "preferred_batch_size": sizes}


def _fit_batch_sizes(config: dict[str, Any]) -> None:
    """What is above the largest batch would be refused."""
    most = int(config[MAX_BATCH])
    batching = config.get("dynamic_batching")
    if batching and batching.get("preferred_batch_size"):
        kept = [each for each in batching["preferred_batch_size"] if each <= most]
        config["dynamic_batching"] = {**batching, "preferred_batch_size": kept}
    if config.get("model_warmup"):
        config["model_warmup"] = [
            {**each, "batch_size": min(each.get("batch_size", 1), most)}
            for each in config["model_warmup"]
        ]
