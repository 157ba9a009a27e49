"""Chooses the settings of a model that are worth varying, from its configuration."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nereid_analyze.space.candidate import DELAY, INSTANCES, MAX_BATCH, PREFERRED, Setting, Value
from nereid_analyze.space.defaults import ModelDefaults
from nereid_analyze.space.override import OFF, UNSET

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# Key: a name of --vary. Value: the setting's name.
NAMES: Final[Mapping[str, str]] = {
    "instances": INSTANCES,
    "max_batch_size": MAX_BATCH,
    "delay": DELAY,
    "preferred": PREFERRED,
    "intra_op_threads": "parameters.intra_op_thread_count",
    "inter_op_threads": "parameters.inter_op_thread_count",
    "padding": "parameters.padding",
}
USUAL: Final = ("instances", "max_batch_size", "delay", "intra_op_threads", "padding")
MODEL_ANALYZER: Final = ("instances", "max_batch_size")
_DELAYS_US: Final = (0, 100, 500, 2000, 10_000)
# Maximum delay as a share of the target, so that time is left to execute.
_DELAY_SHARE: Final = 0.25
_THREADED: Final = ("onnxruntime", "openvino", "pytorch")


@dataclass(frozen=True)
class Limits:
    """Limits of values: (minimum, maximum), or the maximum; `vary` has keys of NAMES.

    rows: largest request that has to fit. always_batched: all candidates batch, where it is legal.
    """

    instances: tuple[int, int] = (1, 5)
    batches: tuple[int, int] = (1, 128)
    threads: int = 1
    target_us: float | None = None
    vary: frozenset[str] = frozenset(USUAL)
    rows: int = 0
    always_batched: bool = False


def model_settings(name: str, config: Mapping[str, Any], limits: Limits) -> tuple[Setting, ...]:
    """Return the settings with several values; an ensemble has none."""
    if is_ensemble(config):
        return ()
    settings = _settings(name, config, limits)
    return tuple(setting for setting in settings if setting.values != (setting.default,))


def listed_settings(
    name: str, config: Mapping[str, Any], alternatives: Mapping[str, list[Any]], rows: int = 0
) -> tuple[Setting, ...]:
    """Return the settings for fields whose alternatives the user lists; add the present values.

    rows: largest request that has to fit.
    """
    settings = []
    for field, values in alternatives.items():
        if field == MAX_BATCH:
            present = int(config.get(MAX_BATCH) or 0)
            sizes = [size for size in map(int, values) if size >= rows]
            settings.append(Setting(name, MAX_BATCH, _with(present, sizes), present))
        elif field == "instance_group" and _counts(values) is not None:
            present = defaults_of(config).instances
            counts = _with(present, _counts(values) or ())
            settings.append(Setting(name, INSTANCES, counts, present))
        else:
            text = json.dumps(config.get(field), sort_keys=True)
            texts = [json.dumps(value, sort_keys=True) for value in values]
            settings.append(Setting(name, field, tuple(dict.fromkeys((text, *texts))), text))
    return tuple(settings)


def defaults_of(config: Mapping[str, Any], weight: float = 1.0) -> ModelDefaults:
    """Return the configuration's values, for the capacity model."""
    batching = config.get("dynamic_batching")
    batches = int(config.get(MAX_BATCH) or 0)
    # Without a batcher, each request is executed alone.
    is_batched = batching is not None or config.get("sequence_batching") is not None
    return ModelDefaults(
        instances=_instances(config),
        max_batch=max(batches, 1) if is_batched or is_ensemble(config) else 1,
        delay_us=int((batching or {}).get("max_queue_delay_microseconds") or 0),
        weight=weight,
    )


def is_ensemble(config: Mapping[str, Any]) -> bool:
    """Return whether the model is an ensemble; only the models of its steps have settings."""
    return config.get("platform") == "ensemble" or bool(config.get("ensemble_scheduling"))


def _settings(name: str, config: Mapping[str, Any], limits: Limits) -> Iterator[Setting]:
    groups = config.get("instance_group") or []
    if "instances" in limits.vary and len(groups) <= 1:
        present = _instances(config)
        counts = _with(present, range(limits.instances[0], limits.instances[1] + 1))
        yield Setting(name, INSTANCES, counts, present)
    batches = int(config.get(MAX_BATCH) or 0)
    if batches > 0 and config.get("sequence_batching") is None:
        yield from _batch_settings(name, config, limits, batches)
    parameters = config.get("parameters") or {}
    on_cpu = not any(group.get("kind") == "KIND_GPU" for group in groups)
    threaded = _backend(config) in _THREADED and on_cpu and limits.threads > 1
    for key in ("intra_op_threads", "inter_op_threads"):
        if key in limits.vary and threaded:
            path = NAMES[key]
            given = _parameter(parameters, path)
            # If it is not set, the backend chooses the number of threads. This counts as the
            # largest value.
            numbers = _powers(1, limits.threads)
            if given.isdigit():
                yield Setting(name, path, _with(int(given), numbers), int(given))
            else:
                yield Setting(name, path, (*numbers, UNSET), UNSET)
    padding = _parameter(parameters, NAMES["padding"])
    if "padding" in limits.vary and padding:
        yield Setting(name, NAMES["padding"], _paddings(padding), padding)


def _batch_settings(
    name: str, config: Mapping[str, Any], limits: Limits, batches: int
) -> Iterator[Setting]:
    if "max_batch_size" in limits.vary:
        values = [size for size in _powers(*limits.batches) if size >= limits.rows]
        yield Setting(name, MAX_BATCH, _with(batches, values), batches)
    batching = config.get("dynamic_batching")
    present = OFF
    if batching is not None:
        present = int(batching.get("max_queue_delay_microseconds") or 0)
    if "delay" in limits.vary:
        most_us = _DELAYS_US[-1]
        if limits.target_us is not None:
            most_us = min(most_us, int(limits.target_us * _DELAY_SHARE))
        delays = [delay for delay in _DELAYS_US if delay <= most_us]
        yield Setting(name, DELAY, _with(present, delays), present)
    elif limits.always_batched and batching is None:
        yield Setting(name, DELAY, (0,), OFF)
    if "preferred" in limits.vary and batching is not None:
        sizes = tuple(batching.get("preferred_batch_size") or ())
        given: Value = sizes if sizes and sizes != (batches,) else UNSET
        several: dict[Value, None] = dict.fromkeys((given, UNSET, "half", "quarter"))
        yield Setting(name, PREFERRED, tuple(several), given)


def _paddings(text: str) -> tuple[Value, ...]:
    """Return the present padding, every second size of it, and additional sizes between.

    A model without padding gets none: only its author knows which tensors belong together.
    """
    paddings: dict[Value, None] = {text: None}
    for change in (lambda sizes: sizes[1::2] if len(sizes) > 1 else sizes, _between):
        parts = []
        for part in text.split(";"):
            tensors, _, sizes = part.rpartition(":")
            changed = change([int(size) for size in sizes.split()])
            parts.append(f"{tensors}: {' '.join(map(str, changed))}")
        paddings[";".join(parts)] = None
    return tuple(paddings)


def _between(sizes: list[int]) -> list[int]:
    middles = [(low + high) // 2 for low, high in itertools.pairwise(sizes)]
    return sorted({*sizes, *middles})


def _parameter(parameters: Mapping[str, Any], path: str) -> str:
    entry = parameters.get(path.partition(".")[2]) or {}
    return str(entry.get("string_value") or "")


def _instances(config: Mapping[str, Any]) -> int:
    groups = config.get("instance_group") or []
    return sum(int(group.get("count") or 1) for group in groups) or 1


def _backend(config: Mapping[str, Any]) -> str:
    return str(config.get("backend") or config.get("platform") or "").partition("_")[0]


def _counts(values: Iterable[Any]) -> list[int] | None:
    """Return the counts of instance groups that differ only in the count; otherwise `None`."""
    groups = list(values)
    if any(len(group) != 1 or set(group[0]) - {"count", "kind"} for group in groups):
        return None
    if len({group[0].get("kind") for group in groups}) > 1:
        return None
    return [int(group[0].get("count", 1)) for group in groups]


def _powers(least: int, most: int) -> Iterator[int]:
    value = least
    while value <= most:
        yield value
        value *= 2


def _with(present: int, values: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({present, *values}))
