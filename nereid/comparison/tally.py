"""Counts of compared exchanges and their differences, with the worst of them kept.

All that is kept is bounded: keys, examples of each key, and their bytes.
"""

from __future__ import annotations

import hashlib
import pickle
from base64 import b64encode
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from math import isfinite, log2
from typing import TYPE_CHECKING, Any, Final

from nereid.comparison.checkpoint import Checkpoint
from nereid.comparison.differences import Kind, compare_streams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.comparison.checkpoint import Parts
    from nereid.comparison.differences import Difference
    from nereid.comparison.responses import Exchange, Tensor
    from nereid.comparison.rules import Rules

FORMAT: Final = "nereid.comparison/1"
# Further models and outputs are counted under this name.
_OTHER: Final = "(other)"
_MAX_KEYS: Final = 2000
# Clients choose names and ids. Longer names count as further ones, longer texts are cut off.
_MAX_NAME: Final = 256
_MAX_TEXT: Final = 1000
_MAX_INPUTS: Final = 64
# Parts of a checkpoint. Examples are large, and seldom change.
_MODEL, _COUNT, _EXAMPLES = "model", "count", "examples"
# Eight buckets double the latency.
_BUCKETS_PER_DOUBLE: Final = 8
_SHORTEST_S: Final = 1e-6


class Redaction(StrEnum):
    """Form in which the inputs of examples are kept."""

    NONE = "none"
    DIGEST = "digest"
    OMIT = "omit"


@dataclass(frozen=True, kw_only=True)
class TallyOptions:
    """Bounds of the examples, and the form of their inputs."""

    max_examples: int = 5
    max_example_bytes: int = 16 << 20
    redaction: Redaction = Redaction.NONE


@dataclass(slots=True)
class _Example:
    measure: float
    text: str
    request_id: str
    inputs: Mapping[str, dict[str, Any]]
    size_bytes: int


@dataclass(slots=True)
class _Count:
    exchanges: int = 0
    worst_measure: float = 0.0
    examples: list[_Example] = field(default_factory=list)


@dataclass(slots=True)
class _ModelCount:
    compared: int = 0
    differing: int = 0
    not_compared: Counter[str] = field(default_factory=Counter)
    latencies: tuple[Counter[int], Counter[int]] = field(
        default_factory=lambda: (Counter(), Counter())
    )


class Tally:
    """Comparison of exchanges by rules. Exchanges of one model and kind are one count."""

    def __init__(self, rules: Rules, options: TallyOptions = TallyOptions()) -> None:
        self._rules = rules
        self._options = options
        self._models: dict[str, _ModelCount] = {}
        # Key: model, kind, name of the output or field.
        self._counts: dict[tuple[str, Kind, str], _Count] = {}
        self._example_bytes = 0
        # Messages by model that need no further comparison, until the next checkpoint has them.
        self.settled: Counter[str] = Counter()
        # See Checkpoint.
        self.settled_through = 0
        self._changed: set[tuple[str, ...]] = set()

    def add(self, exchange: Exchange) -> list[Difference]:
        """Compare an exchange and count it; return its differences."""
        differences = compare_streams(
            self._rules.for_model(exchange.model), exchange.old, exchange.new
        )
        count = self._model(exchange.model)
        count.compared += 1
        count.differing += bool(differences)
        pairs = zip(count.latencies, (exchange.old_latency_s, exchange.new_latency_s), strict=True)
        for histogram, latency_s in pairs:
            if latency_s is not None:
                histogram[_bucket(latency_s)] += 1
        for difference in differences:
            self._add_difference(exchange, difference)
        return differences

    def add_not_compared(self, model: str, reason: str, number: int = 1) -> None:
        """Count exchanges of a model that could not be compared."""
        self._model(model).not_compared[reason] += number

    def totals(self, model: str) -> tuple[int, int]:
        """Return the numbers of compared exchanges of a model, and of those that differ."""
        count = self._models.get(model, _ModelCount())
        return count.compared, count.differing

    def take_checkpoint(self) -> Checkpoint:
        """Return what has changed since the last call."""
        changed, self._changed = self._changed, set()
        settled, self.settled = self.settled, Counter()
        parts = {part: pickle.dumps(self._content(part)) for part in changed}
        return Checkpoint(settled, parts, self.settled_through)

    def restore(self, parts: Parts) -> None:
        """Continue another tally, of whose checkpoints these are the last parts."""
        # Unpickling is safe: the parts come from a tally of ours, by way of the process's owner.
        for (kind, *key), pickled in parts.items():
            content = pickle.loads(pickled)  # noqa: S301
            if kind == _MODEL:
                compared, differing, not_compared, latencies = content
                self._models[key[0]] = _ModelCount(compared, differing, not_compared, latencies)
                continue
            count = self._counts.setdefault((key[0], Kind(key[1]), key[2]), _Count())
            if kind == _COUNT:
                count.exchanges, count.worst_measure = content
            else:
                count.examples = [_Example(*fields) for fields in content]
                self._example_bytes += sum(example.size_bytes for example in count.examples)

    def _content(self, part: tuple[str, ...]) -> object:
        kind, *key = part
        if kind == _MODEL:
            model = self._models[key[0]]
            return model.compared, model.differing, model.not_compared, model.latencies
        count = self._counts[key[0], Kind(key[1]), key[2]]
        if kind == _COUNT:
            return count.exchanges, count.worst_measure
        return [
            (each.measure, each.text, each.request_id, each.inputs, each.size_bytes)
            for each in count.examples
        ]

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        return {
            "format": FORMAT,
            "compared": sum(model.compared for model in self._models.values()),
            "differing": sum(model.differing for model in self._models.values()),
            "not_compared": dict(sum((m.not_compared for m in self._models.values()), Counter())),
            "models": [
                self._model_document(name, self._models[name]) for name in sorted(self._models)
            ],
        }

    def _model_document(self, name: str, count: _ModelCount) -> dict[str, Any]:
        return {
            "name": name,
            "compared": count.compared,
            "differing": count.differing,
            "not_compared": dict(count.not_compared),
            "latency_ms": {
                side: {f"p{share:g}": _quantile_ms(histogram, share / 100) for share in (50, 99)}
                for side, histogram in zip(("old", "new"), count.latencies, strict=True)
            },
            "differences": [
                {
                    "kind": kind,
                    "name": tensor,
                    "count": found.exchanges,
                    "worst": _finite(found.worst_measure),
                    "examples": [
                        {
                            "request_id": example.request_id,
                            "difference": example.text,
                            "measure": _finite(example.measure),
                            "inputs": example.inputs,
                        }
                        for example in found.examples
                    ],
                }
                for (model, kind, tensor), found in sorted(self._counts.items())
                if model == name
            ],
        }

    def _model(self, name: str) -> _ModelCount:
        if name not in self._models and (len(self._models) >= _MAX_KEYS or len(name) > _MAX_NAME):
            name = _OTHER
        self._changed.add((_MODEL, name))
        return self._models.setdefault(name, _ModelCount())

    def _add_difference(self, exchange: Exchange, difference: Difference) -> None:
        model = exchange.model if exchange.model in self._models else _OTHER
        key = model, difference.kind, difference.name
        if key not in self._counts and (
            len(self._counts) >= _MAX_KEYS or len(difference.name) > _MAX_NAME
        ):
            key = model, difference.kind, _OTHER
        self._changed.add((_COUNT, *key))
        count = self._counts.setdefault(key, _Count())
        count.exchanges += 1
        count.worst_measure = max(count.worst_measure, difference.measure)
        examples, options = count.examples, self._options
        if len(examples) >= options.max_examples:
            # The first of equally bad ones stays.
            if not examples or difference.measure <= examples[-1].measure:
                return
            self._example_bytes -= examples.pop().size_bytes
        self._changed.add((_EXAMPLES, *key))
        example = self._example(exchange, difference)
        self._example_bytes += example.size_bytes
        examples.append(example)
        examples.sort(key=_by_measure)

    def _example(self, exchange: Exchange, difference: Difference) -> _Example:
        size = sum(len(tensor.raw) for tensor in exchange.inputs.values())
        redaction = self._options.redaction
        if redaction is Redaction.NONE and (
            self._example_bytes + size > self._options.max_example_bytes
        ):
            redaction = Redaction.DIGEST
        return _Example(
            difference.measure,
            difference.text[:_MAX_TEXT],
            exchange.request_id[:_MAX_NAME],
            {
                name[:_MAX_NAME]: _input(tensor, redaction)
                for name, tensor in islice(exchange.inputs.items(), _MAX_INPUTS)
            },
            size if redaction is Redaction.NONE else 0,
        )


def text_report(document: Mapping[str, Any]) -> str:
    """Return the text of a report's JSON document, with a paragraph for each model."""
    lines: list[str] = []
    for model in document["models"]:
        lines.append(
            f"{model['name']}: {model['compared']} compared, {model['differing']} differ"
            f"{_not_compared(model['not_compared'])}"
        )
        old, new = (model["latency_ms"][side] for side in ("old", "new"))
        if old["p50"] is not None and new["p50"] is not None:
            quantiles = (f"{name} {old[name]:.3g} -> {new[name]:.3g} ms" for name in old)
            lines.append(f"  latency: {', '.join(quantiles)}")
        for difference in model["differences"]:
            name = f" of {difference['name']}" if difference["name"] else ""
            lines.append(
                f"  {difference['kind']}{name}: {difference['count']}, worst "
                f"{_measure_text(difference['worst'])}"
            )
            lines += (
                f"    {example['request_id'] or 'a request without id'}: {example['difference']}"
                for example in difference["examples"][:1]
            )
    lines.append(
        f"total: {document['compared']} compared, {document['differing']} differ"
        f"{_not_compared(document['not_compared'])}"
    )
    return "\n".join(lines)


def _not_compared(reasons: Mapping[str, int]) -> str:
    parts = (f"{number} {reason}" for reason, number in sorted(reasons.items()))
    return f", not compared: {', '.join(parts)}" if reasons else ""


def _measure_text(measure: float | None) -> str:
    return "infinite" if measure is None else f"{measure:.3g}"


def _finite(measure: float) -> float | None:
    # JSON has no infinity.
    return measure if isfinite(measure) else None


def _by_measure(example: _Example) -> float:
    return -example.measure


def _input(tensor: Tensor, redaction: Redaction) -> dict[str, Any]:
    document: dict[str, Any] = {"datatype": tensor.datatype, "shape": list(tensor.shape)}
    if redaction is Redaction.NONE:
        document["base64"] = b64encode(tensor.raw).decode()
    elif redaction is Redaction.DIGEST:
        document["sha256"] = hashlib.sha256(tensor.raw).hexdigest()
    return document


def _bucket(latency_s: float) -> int:
    return round(_BUCKETS_PER_DOUBLE * log2(max(latency_s, _SHORTEST_S)))


def _quantile_ms(histogram: Counter[int], share: float) -> float | None:
    left = sum(histogram.values()) * share
    for bucket in sorted(histogram):
        left -= histogram[bucket]
        if left <= 0:
            return float(1e3 * 2 ** (bucket / _BUCKETS_PER_DOUBLE))
    return None
