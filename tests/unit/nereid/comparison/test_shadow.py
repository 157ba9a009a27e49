from __future__ import annotations

import json

import pytest

from nereid.comparison.rules import TopK
from nereid.comparison.shadow import Shadow, parse_shadow, read_shadow


def test_reads_what_it_writes() -> None:
    shadow = parse_shadow('{"to": "version:4", "percent": 2.5, "rules": "scores: top-k=5"}')
    assert shadow == Shadow("version:4", 2.5, "scores: top-k=5")
    assert (shadow.kind, shadow.target, shadow.server) == ("version", "4", ("", ""))
    assert shadow.tensor_rules().rule_of("scores", "FP32") == TopK(5)
    assert parse_shadow(shadow.text()) == shadow
    assert str(shadow) == "2.5% to version:4, scores: top-k=5"
    assert str(read_shadow({"to": "model:a b"})) == "100% to model:a b"


def test_knows_the_address_of_another_server() -> None:
    shadow = read_shadow({"to": "url:grpc://[::1]:8001/digits"})
    assert shadow.server == ("[::1]:8001", "digits")
    assert read_shadow({"to": "url:grpc://host:8001/a/b"}).server == ("host:8001", "a/b")


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], "an object"),
        ({}, "version:NUMBER"),
        ({"to": 4}, "version:NUMBER"),
        ({"to": "version:0"}, "version:NUMBER"),
        ({"to": "version:-1"}, "version:NUMBER"),
        ({"to": "model:"}, "version:NUMBER"),
        ({"to": "model:a\nb"}, "version:NUMBER"),
        ({"to": "url:http://host:8001/m"}, "version:NUMBER"),
        ({"to": "url:grpc://host/m"}, "version:NUMBER"),
        ({"to": "version:" + "1" * 300}, "version:NUMBER"),
        ({"to": "version:1", "percents": 1}, "keep_inputs, percent, rules, timeout_s"),
        ({"to": "version:1", "percent": -1}, "percent"),
        ({"to": "version:1", "percent": 101}, "percent"),
        ({"to": "version:1", "percent": True}, "percent"),
        ({"to": "version:1", "percent": float("nan")}, "percent"),
        ({"to": "version:1", "timeout_s": 0}, "timeout_s"),
        ({"to": "version:1", "timeout_s": "1"}, "timeout_s"),
        ({"to": "version:1", "keep_inputs": "some"}, "all, digest, none"),
        ({"to": "version:1", "rules": 1}, "OUTPUT: RULE"),
        ({"to": "version:1", "rules": "a: nonsense"}, "is no rule"),
    ],
)
def test_refuses_by_name_what_it_does_not_know(document: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_shadow(document)


def test_refuses_texts_that_are_no_json() -> None:
    for text in ("{", '{"to": "version:1", "to": "version:2"}', "[" * 100_000):
        with pytest.raises(ValueError, match=r"expected JSON|twice"):
            parse_shadow(text)
    assert json.loads(read_shadow({"to": "version:1"}).text())["percent"] == 100
