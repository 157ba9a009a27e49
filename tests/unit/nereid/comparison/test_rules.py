import pytest

from nereid.comparison.rules import (
    Cosine,
    Exact,
    Ignore,
    Rule,
    Text,
    Tolerance,
    TopK,
    format_rule,
    parse_rule,
    parse_rules,
    parse_tensor_rules,
)
from nereid.core.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("exact", Exact()),
        ("ignore", Ignore()),
        ("text", Text()),
        ("absolute=0.5 relative=0.001", Tolerance(0.5, 1e-3)),
        ("cosine=0.999", Cosine(0.999)),
        ("top-k=5", TopK(5)),
    ],
)
def test_rules_have_a_text_form(text: str, rule: Rule) -> None:
    assert parse_rule(text) == rule
    assert format_rule(rule) == text


def test_one_tolerance_leaves_the_other_zero() -> None:
    assert parse_rule(" relative=1e-3 ") == Tolerance(0.0, 1e-3)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "is no rule"),
        ("equal", "'equal' is no rule"),
        ("exact exact", "'exact' is no rule"),
        ("absolute=1 absolute=2", "'absolute=2' is no rule"),
        ("absolute=1 cosine=1", "is no rule"),
        ("absolute=-1", "absolute '-1' is not a number from 0"),
        ("relative=nan", "relative 'nan' is not a number from 0"),
        ("relative=x", "relative 'x' is not a number from 0"),
        ("cosine=1.5", "cosine '1.5' is greater than 1"),
        ("top-k=0", "top-k '0' is not a number from 1"),
        ("top-k=1.5", "top-k '1.5' is not"),
        ("bottom-k=1", "is no rule"),
    ],
)
def test_a_malformed_rule_is_refused(text: str, error: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse_rule(text)
    assert error in raised.value.message


def test_the_first_pattern_that_matches_counts() -> None:
    rules = parse_tensor_rules("scores: cosine=0.9; s*: exact\nlayer:0: ignore;")
    assert rules.rule_of("scores", "FP32") == Cosine(0.9)
    assert rules.rule_of("sum", "FP32") == Exact()
    assert rules.rule_of("layer:0", "FP32") == Ignore()


def test_outputs_without_a_rule_have_the_default_of_their_datatype() -> None:
    rules = parse_tensor_rules("")
    assert rules.rule_of("x", "FP32") == Tolerance(1e-6, 1e-4)
    assert rules.rule_of("x", "INT32") == Exact()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("exact", "rule 'exact' is not of the form OUTPUT: RULE"),
        (": exact", "not of the form"),
        ("a: near", "output 'a': 'near' is no rule"),
        ("a: exact;" * 1001, "more than 1000 rules"),
        (" " * 100_001, "more than 100000 characters"),
    ],
)
def test_malformed_rules_of_outputs_are_refused(text: str, error: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse_tensor_rules(text)
    assert error in raised.value.message


def test_rules_are_by_patterns_of_models() -> None:
    rules = parse_rules({"bert*": "v: cosine=0.9", "*": "*: ignore"})
    assert rules.for_model("bert-1").rule_of("v", "FP32") == Cosine(0.9)
    assert rules.for_model("other").rule_of("v", "FP32") == Ignore()
    assert parse_rules("*: text").for_model("any").rule_of("v", "BYTES") == Text()
    assert parse_rules({}).for_model("any").rule_of("v", "BYTES") == Exact()


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (3, "rules are a text"),
        ({"m": 3}, "rules of model 'm' are no text"),
        ({"m": "x"}, "model 'm': rule 'x' is not of the form"),
    ],
)
def test_malformed_documents_are_refused(document: object, error: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse_rules(document)
    assert error in raised.value.message
