"""Reads how a model decides: from `decisions` of its mapping, or from a package of NoulXP."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Final, TypeVar

from nereid.core.errors import InvalidArgument
from nereid.text.decisions import (
    CONFIDENCE_RULES,
    PARTS,
    PLAIN_FORMS,
    Calibration,
    DecisionLimits,
    DecisionMapping,
    Form,
    Forms,
    MarkerRows,
    PackageFacts,
    PairRows,
)
from nereid.text.documents import Document, parse_document
from nereid.text.questions import CHOICE, PREDICATE, SCORE, SYSTEM_ONE_TYPES, TRUTH, TYPES
from nereid.text.tensors import read_input

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid.text.tensors import Tensors

MANIFESTS: Final = ("noulxp.json", "odxp.json")
_KEYS: Final = (
    "rows",
    "options",
    "label",
    "contrary",
    "truncate",
    "template",
    "inputs",
    "calibration",
    "confidence",
    "max_options",
    "max_levels",
    "max_questions",
)
_PAIRS: Final = "pairs"
_MARKERS: Final = "markers"
_PAIR_KEYS: Final = ("options", "label", "contrary", "truncate")
_MARKER_KEYS: Final = ("template", "inputs")
_STANDARDS: Final = ("noulxp/0.1", "noulxp/0.2", "odxp/0.1", "odxp/0.2")
_PROFILE: Final = "encoder-markers"
_UNSERVED: Final = "causal-letters"
# Files of a package that gateways get.
_TEMPLATE: Final = "template.json"
_CALIBRATION: Final = "calibration.json"
# Names that the profile gives to inputs.
_MARKER_INPUTS: Final = {
    "positions": "marker_positions",
    "mask": "marker_mask",
    "type": "question_type",
}
_ENTAILMENT: Final = "entailment"
_CONTRADICTION: Final = "contradiction"
_MAX_POINTS: Final = 10_000

_Value = TypeVar("_Value")


def read_package(
    manifest: Document, files: Mapping[str, bytes], tensors: Tensors
) -> DecisionMapping:
    """Return how the model of a package decides. May raise InvalidArgument."""
    check_package(manifest)
    template = _package_file(manifest, "template", _TEMPLATE, files)
    calibration = _package_file(manifest, "calibration", _CALIBRATION, files)
    limits = manifest.section("limits")
    confidence = manifest.section("answers").section("confidence")
    return DecisionMapping(
        _read_markers(template, Document(_TEMPLATE, {}), tensors),
        _read_temperatures(calibration),
        _read_confidence(confidence, SYSTEM_ONE_TYPES, "none"),
        _read_limits(limits),
        PackageFacts(
            manifest.string("standard"),
            manifest.string("profile"),
            {key: limits.count(key) for key in limits.values},
        ),
    )


def check_package(manifest: Document) -> None:
    """Raise InvalidArgument for a package of a kind that cannot be served."""
    standard = manifest.string("standard")
    if standard not in _STANDARDS:
        problem = f"expected one of {', '.join(_STANDARDS)}, but it is '{standard[:64]}'"
        raise manifest.refuse("standard", problem)
    profile = manifest.string("profile")
    if profile == _UNSERVED:
        problem = f"'{profile}' cannot be served, as there is no backend for its weights in GGUF"
        raise manifest.refuse("profile", problem)
    if profile != _PROFILE:
        raise manifest.refuse("profile", f"expected {_PROFILE}")


def read_decisions(
    section: Document, labels: Sequence[str], tensors: Tensors, output_size: int
) -> DecisionMapping:
    """Return how a model decides that declares it. May raise InvalidArgument.

    labels: of the model's logits; output_size: number of its logits, or -1.
    """
    section.refuse_unknown(_KEYS)
    kind = section.string("rows") or (_MARKERS if section.has("template") else _PAIRS)
    if kind not in {_PAIRS, _MARKERS}:
        raise section.refuse("rows", f"expected {_PAIRS} or {_MARKERS}")
    for key in _MARKER_KEYS if kind == _PAIRS else _PAIR_KEYS:
        if section.has(key):
            raise section.refuse(key, f"rows of {kind} have none")
    if kind == _PAIRS:
        rows: PairRows | MarkerRows = _read_pairs(section, labels, output_size)
    else:
        rows = _read_markers(section.section("template"), section.section("inputs"), tensors)
    confidence = section.section("confidence")
    own = {name: name for name in TYPES}
    return DecisionMapping(
        rows,
        _read_calibrations(section),
        _read_confidence(confidence, own, CONFIDENCE_RULES[0]),
        _read_limits(section),
    )


def _read_limits(document: Document) -> DecisionLimits:
    return DecisionLimits(
        document.count("max_options"), document.count("max_levels"), document.count("max_questions")
    )


def _package_file(
    manifest: Document, key: str, expected: str, files: Mapping[str, bytes]
) -> Document:
    path = manifest.section(key).string("path")
    if path != expected or expected not in files:
        raise manifest.refuse(key, f"expected a file '{expected}'")
    return parse_document(expected, files[expected])


def _read_pairs(section: Document, labels: Sequence[str], output_size: int) -> PairRows:
    options = section.section("options")
    options.refuse_unknown(TYPES)
    forms = {
        name: (_read_form(options, name),) if options.has(name) else PLAIN_FORMS[name]
        for name in TYPES
    }
    names = [label.lower() for label in labels]
    label = _read_label(section, "label", names, _ENTAILMENT)
    if label is None:
        if max(len(names), output_size) != 1:
            known = ", ".join(labels) or "none"
            problem = f"say which label means that a statement holds; there are {known}"
            raise section.refuse("label", problem)
        label = 0
    contrary = _read_label(section, "contrary", names, _CONTRADICTION)
    if contrary == label:
        raise section.refuse("contrary", "it is the label that means that a statement holds")
    return PairRows(forms, label, contrary, section.boolean("truncate"))


def _read_label(section: Document, key: str, names: Sequence[str], usual: str) -> int | None:
    name = section.string(key).lower()
    if name and name not in names:
        raise section.refuse(key, f"the model has no label '{name[:64]}'")
    name = name or usual
    return names.index(name) if name in names else None


def _read_form(section: Document, key: str) -> Form:
    """Return the templates of an option: an object, or one string for both."""
    if isinstance(section.values.get(key), str):
        text = section.string(key)
        return Form(text, text)
    forms = section.section(key)
    forms.refuse_unknown(("described", "bare"))
    if not forms.values:
        raise section.refuse(key, "expected 'described' or 'bare'")
    described, bare = (
        forms.string(name) if forms.has(name) else None for name in ("described", "bare")
    )
    return Form(described, bare)


def _read_markers(template: Document, inputs: Document, tensors: Tensors) -> MarkerRows:
    inputs.refuse_unknown(_MARKER_INPUTS)
    tokens = template.texts("special_tokens")
    for role in ("marker", "pad"):
        if not tokens.get(role):
            raise template.refuse("special_tokens", f"expected a token '{role}'")
    type_ids = template.section("question_type_ids")
    options = template.section("options")
    budgets = template.section("budgets")
    for key in ("total", "head", "option"):
        if not budgets.count(key):
            raise budgets.refuse(key, "expected a number of tokens")
    truncation = template.string("truncation")
    if truncation not in {"strict", "truncate-state"}:
        raise template.refuse("truncation", "expected strict or truncate-state")
    reserved = template.string("reserved_text", "replace")
    if reserved not in {"replace", "reject"}:
        raise template.refuse("reserved_text", "expected replace or reject")
    instructions = template.section("instructions")
    instructions.section("fallback").refuse_unknown(tuple(SYSTEM_ONE_TYPES))
    positions, mask, kind = (
        read_input(inputs, role, inputs.string(role, usual), tensors)
        for role, usual in _MARKER_INPUTS.items()
    )
    return MarkerRows(
        tokens=tokens,
        type_ids=_by_type({name: _type_id(type_ids, name) for name in SYSTEM_ONE_TYPES}),
        layout=_read_layout(template, tokens),
        head=template.string("head"),
        forms=_read_forms(options),
        prefix=options.string("prefix"),
        max_tokens=budgets.count("total"),
        max_head=budgets.count("head"),
        max_option=budgets.count("option"),
        reserve=budgets.count("reserve", 16),
        min_option=max(budgets.count("option_floor", 4), 1),
        min_head=budgets.count("head_floor", 8),
        is_strict=truncation == "strict",
        refuses_marker=reserved == "reject",
        fallbacks=_by_type(instructions.texts("fallback")),
        needs_instructions=instructions.boolean("required"),
        positions=positions,
        mask=mask,
        type=kind,
    )


def _type_id(section: Document, name: str) -> int:
    if not section.has(name):
        raise section.refuse(name, "expected a number")
    return section.count(name)


def _by_type(values: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return values by type of question, for keys as NoulXP names the types."""
    return {SYSTEM_ONE_TYPES[name]: value for name, value in values.items()}


def _read_forms(options: Document) -> Forms:
    truth = options.section("noul")
    return {
        PREDICATE: tuple(_read_form(truth, name) for name in TRUTH),
        CHOICE: (_read_form(options, CHOICE),),
        SCORE: (_read_form(options, SCORE),),
    }


def _read_layout(template: Document, tokens: Mapping[str, str]) -> tuple[str, ...]:
    """Return the roles and parts in order. A role that is named like a part would be ambiguous."""
    layout = []
    for item in template.sections("layout"):
        role, part = item.string("token"), item.string("part")
        if role in tokens and role not in PARTS:
            layout.append(role)
        elif part in PARTS:
            layout.append(part)
        else:
            raise template.refuse("layout", "expected roles of tokens, and parts")
    if sorted(name for name in layout if name in PARTS) != sorted(PARTS):
        raise template.refuse("layout", f"expected each of {', '.join(PARTS)} once")
    return tuple(layout)


def _read_temperatures(document: Document) -> tuple[Calibration, ...]:
    """Return the calibration of a package."""
    rules = [
        Calibration(
            _type_of(rule, SYSTEM_ONE_TYPES),
            rule.count("min", 2),
            rule.count("max"),
            _temperature(rule),
        )
        for rule in document.sections("by_option_count")
    ]
    temperatures = document.section("temperature")
    for name in temperatures.values:
        if name not in SYSTEM_ONE_TYPES:
            raise temperatures.refuse(name, "unknown type of question")
        value = _number(temperatures, name, least=0.0)
        rules.append(Calibration(SYSTEM_ONE_TYPES[name], temperature=value))
    return tuple(rules)


def _read_calibrations(section: Document) -> tuple[Calibration, ...]:
    return tuple(map(_read_calibration, section.sections("calibration")))


def _read_calibration(rule: Document) -> Calibration:
    rule.refuse_unknown(("type", "min", "max", "temperature", "slope", "offset", "from", "to"))
    isotonic = platt = None
    if rule.has("slope"):
        platt = _number(rule, "slope"), _number(rule, "offset") if rule.has("offset") else 0.0
    if rule.has("from"):
        isotonic = _curve(rule, "from"), _curve(rule, "to")
        if len(isotonic[0]) != len(isotonic[1]):
            raise rule.refuse("to", "expected as many numbers as in 'from'")
    if rule.has("temperature") + (platt is not None) + (isotonic is not None) != 1:
        raise InvalidArgument(
            f"{rule.source}: expected one of 'temperature', 'slope' with 'offset', 'from' with 'to'"
        )
    temperature = _temperature(rule) if rule.has("temperature") else 1.0
    kind = _type_of(rule, {name: name for name in TYPES})
    return Calibration(kind, rule.count("min"), rule.count("max"), temperature, platt, isotonic)


def _type_of(rule: Document, names: Mapping[str, str]) -> str:
    kind = names.get(rule.string("type"))
    if kind is None:
        raise rule.refuse("type", f"expected one of {', '.join(names)}")
    return kind


def _temperature(rule: Document) -> float:
    return _number(rule, "temperature", least=0.0)


def _number(document: Document, key: str, *, least: float | None = None) -> float:
    """Return a finite number above `least`."""
    value = document.values.get(key)
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not isfinite(value)
        or (least is not None and value <= least)
    ):
        bound = "" if least is None else f" above {least:g}"
        raise document.refuse(key, f"expected a number{bound}")
    return float(value)


def _curve(rule: Document, key: str) -> tuple[float, ...]:
    values = rule.values.get(key)
    if not isinstance(values, list) or not 2 <= len(values) <= _MAX_POINTS:
        raise rule.refuse(key, f"expected 2 to {_MAX_POINTS} numbers")
    points = tuple(_number(Document(rule.source, {key: value}), key) for value in values)
    # numpy.interp is undefined for a curve that goes back.
    if not 0 <= points[0] <= points[-1] <= 1 or any(one > next_ for one, next_ in pairwise(points)):
        raise rule.refuse(key, "expected ascending numbers from 0 to 1")
    return points


def _read_confidence(section: Document, names: Mapping[str, str], default: str) -> dict[str, str]:
    section.refuse_unknown(tuple(names))
    rules = {}
    for name, kind in names.items():
        rules[kind] = section.string(name, default)
        if rules[kind] not in CONFIDENCE_RULES:
            raise section.refuse(name, f"expected one of {', '.join(CONFIDENCE_RULES)}")
    return rules
