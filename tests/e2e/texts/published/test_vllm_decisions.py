"""Published tests of vLLM: decisions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.texts.published.text_site import Site, user

pytestmark = pytest.mark.slow


def choices(instructions: str, *names: str) -> dict[str, Any]:
    return {"type": "choice", "instructions": instructions, "criteria": dict.fromkeys(names)}


def test_system_one(site: Site) -> None:
    asked = {
        "model": "decide",
        "state": {"team": "the cat", "language": "rain"},
        "questions": {
            "team": choices("which team", "cat", "dog", "mat"),
            "urgent": {"type": "noul", "instructions": "rain"},
            "tone": {"type": "score", "instructions": "how", "criteria": ["dry", "wet", "rain"]},
        },
    }
    body = site.post("/v1/systemone", asked)
    results = body["answers"]
    assert list(results) == list(asked["questions"])
    team = results["team"]
    assert team["probabilities"].keys() == {"cat", "dog", "mat"}
    assert sum(team["probabilities"].values()) == pytest.approx(1)
    assert team["choice"] == max(team["probabilities"], key=team["probabilities"].get)
    assert 0 <= results["urgent"]["noul"] <= 1
    tone = results["tone"]
    expected = sum(index * share for index, share in enumerate(tone["probabilities"].values()))
    assert tone["score"] == pytest.approx(expected, abs=1e-6)
    assert body["usage"]["input_tokens"] > 0
    many = {"n": choices("which", *map(str, range(27)))}
    body = site.post("/v1/systemone", {"model": "decide", "state": "7", "questions": many})
    assert len(body["answers"]["n"]["probabilities"]) == 27


def test_errors_of_system_one(site: Site) -> None:
    for question in (
        choices("which team", "cat"),
        {"type": "noul", "criteria": ["yes", "no"]},
        {"type": "score", "criteria": ["calm"]},
    ):
        body = {"model": "decide", "state": "x", "questions": {"q": question}}
        assert site.post("/v1/systemone", body, 400)["error"]["message"]


def decide(site: Site, *questions: dict[str, Any], status: int = 200, **fields: Any) -> Any:
    asked = {"model": "decide", "input": "rain", "questions": questions, **fields}
    return site.post("/v1/decisions", asked, status)


PREDICATE = {"type": "predicate", "instructions": "rain"}


def choice_of(*values: Any) -> dict[str, Any]:
    made = [{"value": value} for value in values]
    return {"type": "choice", "instructions": "x", "choices": made}


def score_of(*levels: str) -> dict[str, Any]:
    made = [{"label": level} for level in levels]
    return {"type": "score", "instructions": "x", "levels": made}


def test_decisions(site: Site) -> None:
    questions = PREDICATE, choice_of(True, "true", False), score_of("low", "low", "high")
    holds, chosen, scored = decide(site, *questions)["answers"]
    assert (holds["name"], 0 <= holds["probability"] <= 1) == (None, True)
    values = [each["value"] for each in chosen["probabilities"]]
    assert [(type(value), value) for value in values] == [
        (bool, True),
        (str, "true"),
        (bool, False),
    ]
    shares = [each["probability"] for each in scored["probabilities"]]
    assert [each["value"] for each in scored["probabilities"]] == [0, 1, 2]
    assert scored["score"] == pytest.approx(shares[1] + 2 * shares[2], abs=1e-6)


def test_inputs_of_decisions(site: Site) -> None:
    parts = [{"type": "input_text", "text": text} for text in ("rain", "rose")]
    for given in ("", user([]), user("first") + user(parts)):
        assert decide(site, PREDICATE, input=given)["answers"]
    image = [{"type": "input_image", "image_url": "https://example.com/a.png"}]
    error = decide(site, PREDICATE, input=user(image), status=400)["error"]
    assert "image" in error["message"]


def test_errors_of_decisions(site: Site) -> None:
    for question in (
        {**PREDICATE, "instructions": 1},
        {**PREDICATE, "criteria": {}},
        choice_of("a"),
        choice_of("a", "a"),
        choice_of(True, True),
        choice_of(1, "a"),
        choice_of(None, "a"),
        choice_of(*map(str, range(256))),
        score_of("a"),
    ):
        assert decide(site, question, status=400)["error"]["message"]
    assert len(decide(site, choice_of(*map(str, range(255))))["answers"]) == 1
    for fields in ({"input": {"text": "x"}}, {"stream": True}):
        assert decide(site, PREDICATE, status=400, **fields)["error"]["message"]
    assert decide(site, status=400)["error"]["param"] == "questions"
    assert decide(site, *[PREDICATE] * 401, status=400)["error"]["param"] == "questions"
