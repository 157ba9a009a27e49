"""Known differences from Triton, which docs/compatibility.md explains under the same titles."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Config = Mapping[str, Any]


class KnownDifference(NamedTuple):
    """A difference: models that may show it, and what the report says of it.

    concerns: whether it may show in a model, by its configuration. kind: of the comparison, ""
    for none. pattern: of the difference's name and text.
    """

    title: str
    concerns: Callable[[Config], bool]
    kind: str = ""
    pattern: str = ""


def _is_ensemble(config: Config) -> bool:
    return bool(config.get("ensemble_scheduling"))


def _is_python(config: Config) -> bool:
    return bool(config.get("backend") == "python")


def _has_text_control(config: Config) -> bool:
    controls = (config.get("sequence_batching") or {}).get("control_input", ())
    return any(
        control.get("data_type") == "TYPE_STRING"
        for tensor in controls
        for control in tensor.get("control", ())
    )


def _has_optional_input(config: Config) -> bool:
    return any(tensor.get("optional") for tensor in config.get("input", ()))


def _has_labels(config: Config) -> bool:
    return any(tensor.get("label_filename") for tensor in config.get("output", ()))


def _is_cached(config: Config) -> bool:
    return bool((config.get("response_cache") or {}).get("enable"))


KNOWN_DIFFERENCES: Final = (
    KnownDifference(
        "A text of any length fits a control tensor",
        _has_text_control,
        "status",
        r"unexpected number of string elements 2 for inference input",
    ),
    KnownDifference("An ensemble ends when the wanted outputs are there", _is_ensemble),
    KnownDifference(
        "Inputs of ensembles are required unless optional",
        lambda config: _is_ensemble(config) and _has_optional_input(config),
    ),
    KnownDifference(
        "Classes are made by the step that makes the output",
        lambda config: _is_ensemble(config) and _has_labels(config),
    ),
    KnownDifference("Requested outputs and parameters are part of the cache key", _is_cached),
    KnownDifference("An output that a model returns twice is sent twice", _is_python),
    KnownDifference("A calling model gets the code of an error", _is_python),
    KnownDifference("numpy's strings among objects are strings", _is_python),
    KnownDifference("NaN is never the best class", _has_labels),
    # The check reports such a model as one that would not be served.
    KnownDifference(
        "Python models that cannot work are refused at load",
        lambda _: False,
        "control call",
        r"^ready only the old server serves it: .*does not implement `execute` method",
    ),
)


def explain(kind: str, name: str, text: str) -> str:
    """Return the title of the known difference that a found one is, or ""."""
    for known in KNOWN_DIFFERENCES:
        if known.pattern and known.kind == kind and re.search(known.pattern, f"{name} {text}"):
            return known.title
    return ""
