"""Decisions over a whole mesh: packages of NoulXP, rankers, and OpenAI's own client."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import openai
import pytest
from langchain_core._api import LangChainBetaWarning
from langchain_openai.decisions import Choice, Level, OpenAIDecisions, Predicate, Score
from noulxp import schemas
from noulxp.conformance import compare_question
from openai.lib.decisions_tool_runner import AsyncDecisionsToolRunner, DecisionsToolRunner
from pydantic import SecretStr

from tests.support.mesh.mesh import Mesh, running
from tests.support.models import decision_models, text_models

pytestmark = pytest.mark.slow

PACKAGES: dict[str, dict[str, Any]] = {
    "toy": {},
    "strict": {
        "seed": 2,
        "truncation": "strict",
        "reserved_text": "reject",
        "instructions": {"required": True},
    },
    "short": {"seed": 3, "budgets": {"total": 96, "head": 40, "option": 8, "reserve": 12}},
}
NLI = ("contradiction", "neutral", "entailment")
CURVE = {"from": [0.0, 0.5, 1.0], "to": [0.1, 0.2, 0.9]}


class Site(NamedTuple):
    """The mesh, and its repository."""

    mesh: Mesh
    repository: Path
    http: httpx.Client
    client: openai.OpenAI

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.mesh.http_port}/v1"

    def system_one(self, body: Any) -> httpx.Response:
        return self.http.post("/systemone", json=body)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    repository = tmp_path_factory.mktemp("decisions")
    for name, template in PACKAGES.items():
        decision_models.write_package(repository / name, **template)
    text_models.export(repository / "ranker", labels=("relevance",), task="decide")
    text_models.export(
        repository / "nli",
        labels=NLI,
        decisions={"calibration": [{"type": "predicate", **CURVE}], "truncate": True},
    )
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(repository, log, "--openai-api") as mesh, ExitStack() as stack:
        url = f"http://127.0.0.1:{mesh.http_port}/v1"
        http = stack.enter_context(httpx.Client(base_url=url, timeout=60))
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        yield Site(mesh, repository, http, stack.enter_context(client))


def observed(result: dict[str, Any]) -> tuple[list[str], list[float]]:
    """Keys and probabilities of the options of a System One answer."""
    if result["type"] == "noul":
        return ["false", "true"], [1 - result["noul"], result["noul"]]
    return [*result["probabilities"]], [*result["probabilities"].values()]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_packages_conformance_file_passes(site: Site, package: str) -> None:
    refused = 0
    for case in decision_models.cases(site.repository / package):
        response = site.system_one({"model": package, **case["request"]})
        content = response.json()
        if "error" in case:
            refused += 1
            assert response.status_code == 422, case["id"]
            assert schemas.errors(content, "error") == []
            assert content["error"]["type"] == "request_refused"
            continue
        assert response.status_code == 200, (case["id"], content)
        assert response.headers["noulxp-version"] == "0.2"
        assert schemas.errors(content, "response") == []
        for name, expected in case["expected"].items():
            result = compare_question(expected, *observed(content["answers"][name]))
            assert result["ok"], (case["id"], name, result)
            assert result["dp"] <= 1e-4
    assert bool(refused) == (package == "strict")


def test_packages_are_described(site: Site) -> None:
    (entry,) = [each for each in site.http.get("/models").json()["data"] if each["id"] == "toy"]
    assert schemas.errors({"object": "list", "data": [entry]}, "models") == []
    assert (entry["profile"], entry["limits"]) == (
        "encoder-markers",
        {"max_tokens": 512, "max_options": 64},
    )


def questions(count: int) -> list[Any]:
    kinds: list[dict[str, Any]] = [
        {"type": "predicate", "instructions": "It is about a cat."},
        {
            "type": "choice",
            "instructions": "Who is it?",
            "choices": [{"value": "true"}, {"value": True}, {"value": "c", "description": "cat"}],
        },
        {
            "type": "score",
            "instructions": "How wet is it?",
            "levels": [{"label": "dry"}, {"label": "wet", "description": "rain"}],
        },
    ]
    return [{**kinds[index % 3], "name": f"q{index}"} for index in range(count)]


@pytest.mark.parametrize("model", ["toy", "ranker", "nli"])
def test_four_hundred_questions_are_decided_in_order(site: Site, model: str) -> None:
    decision = site.client.decisions.create(
        model=model,
        input="the cat sat on the mat",
        questions=questions(400),
        prompt_cache_key="key",
        prompt_cache_options={"mode": "implicit", "ttl": "30m"},
        safety_identifier="somebody",
    )
    assert [each.name for each in decision.answers] == [f"q{index}" for index in range(400)]
    assert decision.model == model
    first, second, third = decision.answers[:3]
    assert first.type == "predicate"
    assert 0 <= first.probability <= 1
    assert second.type == "choice"
    values = [each.value for each in second.probabilities]
    # True == 1, and so no comparison of values would tell them apart from their texts.
    assert [(type(value), value) for value in values] == [(str, "true"), (bool, True), (str, "c")]
    chosen = max(second.probabilities, key=lambda each: each.probability)
    assert (second.choice, second.confidence >= 0) == (chosen.value, True)
    assert third.type == "score"
    assert [(each.value, each.label) for each in third.probabilities] == [(0, "dry"), (1, "wet")]
    assert third.score == pytest.approx(third.probabilities[1].probability)
    for each in decision.answers[1:3]:
        assert each.type in {"choice", "score"}
        assert sum(option.probability for option in each.probabilities) == pytest.approx(1)
    predicates = [each.probability for each in decision.answers if each.type == "predicate"]
    assert predicates == pytest.approx([first.probability] * 134)
    usage = decision.usage
    assert usage.input_tokens == usage.total_tokens > 400
    assert usage.output_tokens == 0


def softmax(values: Any) -> Any:
    powers = np.exp(np.array(values) - max(values))
    return powers / powers.sum()


def test_pairs_have_the_probabilities_of_the_bare_model(site: Site) -> None:
    text = "the cat sat on the mat"
    options = ["c: cat", "rain", "the dog"]
    asked: list[Any] = [
        {"type": "predicate", "instructions": "rates rose"},
        {
            "type": "choice",
            "instructions": "who",
            "choices": [{"value": "c", "description": "cat"}, *map(choice, options[1:])],
        },
    ]
    for model, label in (("ranker", 0), ("nli", 2)):
        bare = text_models.BareModel(site.repository / model)
        logits = bare.output(text, "rates rose")
        # Without a label for the contrary, a score stands against 0.
        odds = logits[label] - (logits[0] if model == "nli" else 0)
        expected = 1 / (1 + np.exp(-odds))
        if model == "nli":
            expected = np.interp(expected, CURVE["from"], CURVE["to"])
        decision = site.client.decisions.create(model=model, input=text, questions=asked)
        holds, chosen = decision.answers
        assert holds.type == "predicate"
        assert holds.probability == pytest.approx(expected, abs=1e-5)
        assert chosen.type == "choice"
        pairs = [bare.output(text, f"who {option}")[label] for option in options]
        probabilities = [each.probability for each in chosen.probabilities]
        assert probabilities == pytest.approx(softmax(pairs), abs=1e-5)


def choice(value: str) -> dict[str, str]:
    return {"value": value}


def test_inputs_that_are_too_long_are_cut_or_refused(site: Site) -> None:
    asked: list[Any] = [{"type": "predicate", "instructions": "rain"}]
    text = "the cat sat on the mat " * 40
    with pytest.raises(openai.BadRequestError, match="64 tokens, but item 0 of 'input' has 240"):
        site.client.decisions.create(model="ranker", input=text, questions=asked)
    decision = site.client.decisions.create(model="nli", input=text, questions=asked)
    bare = text_models.BareModel(site.repository / "nli")
    # 64 tokens: 60 of the text, one of the statement, and three special ones.
    logits = bare.output("the cat sat on the mat " * 10, "rain")
    expected = np.interp(1 / (1 + np.exp(logits[0] - logits[2])), CURVE["from"], CURVE["to"])
    (holds,) = decision.answers
    assert holds.type == "predicate"
    assert holds.probability == pytest.approx(expected, abs=1e-5)
    assert decision.usage.input_tokens == 64


def test_a_question_that_the_model_cannot_read_is_refused_alone(site: Site) -> None:
    decision = site.client.decisions.create(
        model="strict",
        input="the cat",
        questions=[
            {"type": "predicate", "instructions": "cat", "name": "first"},
            {"type": "predicate", "instructions": "is it <option>?", "name": "second"},
            {"type": "predicate", "instructions": ""},
        ],
    )
    first, second, third = decision.answers
    assert (first.type, first.name) == ("predicate", "first")
    assert second.to_dict() == {
        "type": "refusal",
        "name": "second",
        "reason": "questions[1]: it contains the model's token '<option>'",
    }
    assert third.to_dict()["reason"] == "questions[2]: this model needs instructions"
    alone = site.system_one({"model": "strict", "questions": {"q": {"type": "noul"}}})
    assert (alone.status_code, alone.json()["error"]["message"]) == (
        422,
        "questions.q: this model needs instructions",
    )


def test_langchains_decisions(site: Site) -> None:
    with pytest.warns(LangChainBetaWarning):
        decisions = OpenAIDecisions(model="toy", base_url=site.url, api_key=SecretStr("none"))
    response = decisions.invoke(
        {
            "input": {"cat": ["sat", 1]},
            "questions": {
                "wet": Predicate(instructions="It rains."),
                "who": Choice(instructions="Who?", choices={"cat": None, "dog": "a dog"}),
                "size": Score(instructions="How big?", levels=["small", Level(label="big")]),
            },
        }
    )
    assert 0 < response.predicates["wet"].probability < 1
    assert response.choices["who"].choice in {"cat", "dog"}
    assert 0 < response.scores["size"].score < 1
    assert not response.refusals


class Desk:
    """A letter to open and to read. Each action can be taken once."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def candidates(self, _observation: Any) -> Any:
        """What is left to do."""
        left = [name for name in ("open", "read") if name not in self.done]
        actions = [
            {"id": name, "description": f"{name} it", "execute": partial(self.done.append, name)}
            for name in left
        ]
        return [*actions, {"id": "done", "description": "It is done.", "done": True}]

    async def offer(self, observation: Any) -> Any:
        """What is left to do, by actions that are awaited."""
        offered = self.candidates(observation)
        for each in offered:
            if "execute" in each:
                each["execute"] = partial(self.take, each["id"])
        return offered

    async def take(self, name: str) -> None:
        """Do one of them."""
        self.done.append(name)

    async def observe(self) -> Any:
        """What there is to see."""
        return [{"type": "input_text", "text": f"done: {self.done}"}]


async def test_the_tool_runners_of_openais_package(site: Site) -> None:
    params: Any = {"model": "toy", "input": "read the letter"}
    desk = Desk()
    runner = DecisionsToolRunner(observe=lambda: f"done: {desk.done}", candidates=desk.candidates)
    result = await asyncio.to_thread(runner.run, site.client, params)
    assert (result["status"], result["completed_candidate_ids"]) == ("unverified", desk.done)
    assert result["decisions"]
    desk = Desk()
    own = AsyncDecisionsToolRunner(observe=desk.observe, candidates=desk.offer)
    async with openai.AsyncOpenAI(base_url=site.url, api_key="none") as client:
        result = await own.run(client, params)
    assert (result["status"], result["completed_candidate_ids"]) == ("unverified", desk.done)
