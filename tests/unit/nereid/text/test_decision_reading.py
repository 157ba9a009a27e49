"""How models decide: what they declare, and what packages of NoulXP say."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereid.core.errors import InvalidArgument
from nereid.text import TextMapping, read_mapping
from nereid.text.decisions import (
    Calibration,
    DecisionLimits,
    DecisionMapping,
    Form,
    MarkerRows,
    PairRows,
    QuestionRefused,
)
from nereid.text.questions import CHOICE, PREDICATE, SCORE, Option, Question
from tests.support.models.decision_models import CALIBRATION, MANIFEST, PACKAGE, PAIRS, TEMPLATE
from tests.support.models.onnx_models import config

NLI = PAIRS.replace("dims: [ 1 ]", "dims: [ 3 ]")
LABELS = ["Contradiction", "neutral", "ENTAILMENT"]


def mapping(tensors: str, **documents: Any) -> TextMapping:
    files = {
        f"{name.replace('__', '/')}.json": json.dumps(value).encode()
        for name, value in documents.items()
    }
    message = config(tensors)
    message.max_batch_size = 8
    found = read_mapping(message, {"tokenizer.json": b"{}", **files})
    assert found is not None
    return found


def declared(tensors: str = PAIRS, labels: Any = (), **decisions: Any) -> DecisionMapping:
    text: dict[str, Any] = {"task": "decide", "decisions": decisions}
    if labels:
        text["labels"] = labels
    found = mapping(tensors, text=text).decisions
    assert found is not None
    return found


def package(**changes: Any) -> DecisionMapping:
    """A package whose documents have these changes. Key: document__key__key."""
    documents = deepcopy({"noulxp": MANIFEST, "template": TEMPLATE, "calibration": CALIBRATION})
    for path, value in changes.items():
        *parents, last = path.split("__")
        place: Any = documents
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[last]
        else:
            place[last] = value
    found = mapping(PACKAGE, **documents).decisions
    assert found is not None
    return found


def question(kind: str, *options: Option) -> Question:
    return Question("q", kind, "", options)


def test_a_ranker_decides_by_its_only_score() -> None:
    found = declared()
    assert found.rows == PairRows()
    assert (found.calibrations, found.limits, found.package) == ((), DecisionLimits(), None)
    assert {*found.confidence.values()} == {"max-probability"}


def test_the_labels_of_inference_are_known() -> None:
    found = declared(NLI, LABELS)
    assert found.rows == PairRows(label=2, contrary=0)
    found = declared(NLI, LABELS, label="neutral", contrary="entailment", truncate=True)
    assert found.rows == PairRows(label=1, contrary=2, truncates=True)


@pytest.mark.parametrize("task", ["rank", "classify"])
def test_a_model_may_decide_besides_what_it_does(task: str) -> None:
    labels = ["score"] if task == "rank" else LABELS
    found = mapping(
        PAIRS if task == "rank" else NLI,
        text={"task": [task, "decide"]},
        config={
            "architectures": ["BertForSequenceClassification"],
            "id2label": {str(index): label for index, label in enumerate(labels)},
        },
    )
    assert found.tasks == frozenset({task, "decide"})
    assert found.decisions is not None
    rows = PairRows() if task == "rank" else PairRows(label=2, contrary=0)
    assert found.decisions.rows == rows


def test_forms_are_strings_or_objects() -> None:
    form = {"bare": "{name}"}
    rows = declared(options={"choice": form, "predicate": "Is it so? {instructions}"}).rows
    assert isinstance(rows, PairRows)
    text = "Is it so? {instructions}"
    assert rows.forms[CHOICE] == (Form(None, "{name}"),)
    assert rows.forms[PREDICATE] == (Form(text, text),)
    with pytest.raises(QuestionRefused, match="option 'a' needs no description"):
        rows.forms[CHOICE][0].text(question(CHOICE), Option("a", "b"), 0)


def test_calibrations_are_kept_in_order() -> None:
    rules: list[dict[str, Any]] = [
        {"type": "choice", "min": 3, "max": 5, "temperature": 2},
        {"type": "choice", "slope": 0.5, "offset": -1},
        {"type": "predicate", "slope": 2},
        {"type": "score", "from": [0, 0.5, 1], "to": [0.1, 0.1, 1]},
    ]
    found = declared(calibration=rules, confidence={"score": "typesafe-ordinal"})
    first, second, third, fourth = found.calibrations
    assert first == Calibration(CHOICE, 3, 5, 2.0)
    assert second == Calibration(CHOICE, platt=(0.5, -1.0))
    assert third == Calibration(PREDICATE, platt=(2.0, 0.0))
    assert fourth == Calibration(SCORE, isotonic=((0, 0.5, 1), (0.1, 0.1, 1)))
    options = [Option(str(index)) for index in range(6)]
    assert found.calibration(question(CHOICE, *options[:4])) == first
    assert found.calibration(question(CHOICE, *options)) == second
    assert found.confidence[SCORE] == "typesafe-ordinal"


def test_a_model_may_declare_markers_in_the_form_of_packages() -> None:
    template = {key: value for key, value in TEMPLATE.items() if key != "standard"}
    tensors = PACKAGE.replace("question_type", "KIND")
    rows = declared(tensors, template=template, inputs={"type": "KIND"}, max_options=3).rows
    assert isinstance(rows, MarkerRows)
    assert (rows.type.name, rows.positions.name, rows.marker) == (
        "KIND",
        "marker_positions",
        "<option>",
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"row": "pairs"}, "decisions: unknown key 'row'"),
        ({"rows": "other"}, "decisions: rows: expected pairs or markers"),
        ({"rows": "pairs", "template": {}}, "decisions: template: rows of pairs have none"),
        ({"rows": "markers", "label": "a"}, "decisions: label: rows of markers have none"),
        ({"rows": "markers"}, "template: special_tokens: expected a token 'marker'"),
        ({"label": "other"}, "label: the model has no label 'other'"),
        ({"options": {"noul": "x"}}, "options: unknown key 'noul'"),
        ({"options": {"choice": {}}}, "options: choice: expected 'described' or 'bare'"),
        ({"calibration": {}}, "calibration: expected a list of objects"),
        ({"calibration": [1]}, "calibration: 0: expected an object"),
        ({"calibration": [{"type": "noul"}]}, "calibration: 0: expected one of"),
        ({"calibration": [{"type": "noul", "slope": 1}]}, "type: expected one of predicate"),
        ({"calibration": [{"type": "choice"}]}, "expected one of 'temperature'"),
        (
            {"calibration": [{"type": "choice", "slope": 1, "temperature": 1}]},
            "expected one of 'temperature'",
        ),
        (
            {"calibration": [{"type": "choice", "temperature": 0}]},
            "temperature: expected a number above 0",
        ),
        ({"calibration": [{"type": "choice", "slope": True}]}, "slope: expected a number"),
        (
            {"calibration": [{"type": "choice", "from": [0, 1], "to": [1, 0]}]},
            "to: expected ascending numbers from 0 to 1",
        ),
        (
            {"calibration": [{"type": "choice", "from": [0, 1], "to": [0, 0.5, 1]}]},
            "to: expected as many numbers as in 'from'",
        ),
        ({"calibration": [{"type": "choice", "from": [0, 1]}]}, "to: expected 2 to 10000"),
        ({"confidence": {"choice": "x"}}, "confidence: choice: expected one of max-probability"),
    ],
)
def test_what_is_declared_wrong_is_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^text\.json: decisions") as refused:
        declared(**fields)
    assert text in refused.value.message


def test_several_labels_without_a_usual_name_are_ambiguous() -> None:
    with pytest.raises(InvalidArgument, match="label: say which label means that a statement hold"):
        declared(NLI, ["a", "b", "c"])
    with pytest.raises(InvalidArgument, match="contrary: it is the label that means"):
        declared(NLI, LABELS, contrary="entailment")


def test_a_package_is_read() -> None:
    found = package()
    rows = found.rows
    assert isinstance(rows, MarkerRows)
    assert rows.layout == ("cls", "head", "options", "sep", "state", "sep")
    assert rows.type_ids == {CHOICE: 0, SCORE: 1, PREDICATE: 2}
    assert (rows.max_tokens, rows.reserve, rows.min_option, rows.min_head) == (512, 16, 4, 8)
    assert found.calibrations == (
        Calibration(CHOICE, 6, 0, 2.0),
        Calibration(CHOICE, temperature=1.3),
        Calibration(SCORE, temperature=0.8),
        Calibration(PREDICATE, temperature=1.7),
    )
    assert found.confidence == {CHOICE: "entropy", SCORE: "typesafe-ordinal", PREDICATE: "none"}
    assert found.limits == DecisionLimits(64, 32, 0)
    options = [Option(str(index)) for index in range(33)]
    found.check(question(CHOICE, *options))
    with pytest.raises(QuestionRefused, match="it has 33 options, but the model reads up to 32"):
        found.check(question(SCORE, *options))


def test_a_package_may_have_older_names() -> None:
    manifest = MANIFEST | {
        "standard": "odxp/0.2",
        "tokenizer": {"path": "tokenizer/tokenizer.json"},
    }
    found = mapping(
        PACKAGE,
        odxp=manifest,
        template=TEMPLATE,
        calibration=CALIBRATION,
        tokenizer__tokenizer={},
    )
    assert (found.tasks, found.output, found.max_tokens) == (
        frozenset({"decide"}),
        "option_logits",
        512,
    )
    assert found.tokenizer == "tokenizer/tokenizer.json"
    assert found.decisions is not None
    assert found.decisions.package is not None
    assert found.decisions.package.standard == "odxp/0.2"


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("noulxp__standard", "noulxp/0.3", "standard: expected one of noulxp/0.1"),
        ("noulxp__profile", "causal-letters", "profile: 'causal-letters' cannot be served"),
        ("noulxp__profile", "other", "profile: expected encoder-markers"),
        ("noulxp__template__path", "t.json", "template: expected a file 'template.json'"),
        ("noulxp__calibration", None, "calibration: expected a file 'calibration.json'"),
        ("noulxp__tokenizer__path", "other.json", "no file 'other.json'"),
        ("noulxp__answers__confidence__choice", "x", "confidence: choice: expected one of"),
        ("template__special_tokens__marker", None, "expected a token 'marker'"),
        ("template__question_type_ids__noul", None, "question_type_ids: noul: expected a number"),
        ("template__layout", [{"part": "head"}], "layout: expected each of"),
        ("template__layout", [{"token": "other"}], "layout: expected roles of tokens"),
        ("template__layout", [1], "layout: 0: expected an object"),
        ("template__budgets__head", 0, "budgets: head: expected a number of tokens"),
        ("template__truncation", "cut", "truncation: expected strict or truncate-state"),
        ("template__reserved_text", "cut", "reserved_text: expected replace or reject"),
        ("template__instructions", {"fallback": {"x": ""}}, "fallback: unknown key 'x'"),
        ("template__options__choice", None, "choice: expected 'described' or 'bare'"),
        ("calibration__temperature__noul", "1", "temperature: noul: expected a number above 0"),
        ("calibration__temperature__x", 1, "temperature: x: unknown type of question"),
        ("calibration__by_option_count", [{"type": "x"}], "by_option_count: 0: type: expected"),
    ],
)
def test_what_is_wrong_in_a_package_is_named(path: str, value: Any, text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        package(**{path: value})
    assert text in refused.value.message


def test_a_model_that_takes_text_cannot_decide() -> None:
    tensors = """
    input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "SCORE" data_type: TYPE_FP32 dims: [ 1 ] }
    """
    with pytest.raises(InvalidArgument, match="inputs: models that decide take token ids"):
        declared(tensors)


_LEAVES = st.none() | st.booleans() | st.integers(-2, 600) | st.floats() | st.text(max_size=4)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
_PATHS = [
    *(f"noulxp__{key}" for key in MANIFEST),
    *(f"template__{key}" for key in TEMPLATE),
    *(f"template__budgets__{key}" for key in ("total", "head", "option", "reserve")),
    *(f"template__options__{key}" for key in ("prefix", "choice", "noul")),
    "template__instructions",
    *(f"calibration__{key}" for key in CALIBRATION),
]


@settings(max_examples=100)
@given(path=st.sampled_from(_PATHS), value=_VALUES)
def test_any_package_is_read_or_refused(path: str, value: Any) -> None:
    with suppress(InvalidArgument):
        package(**{path: value})
