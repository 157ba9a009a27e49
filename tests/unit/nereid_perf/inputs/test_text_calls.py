"""Bodies of calls to OpenAI's API."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.plan import InputPlan, ModelPlan
from nereid_perf.inputs.resolution import resolve_plan
from nereid_perf.inputs.source import expects_outputs, make_source
from nereid_perf.inputs.text_calls import ENDPOINTS, endpoint_path, make_calls
from nereid_perf.server import Server


def _plan(endpoint: str = "embeddings", streams: bool = False, **model: Any) -> InputPlan:
    models = (ModelPlan("m", **{"string_length": 20, **model}),)
    return InputPlan("http", models, path=endpoint_path(endpoint), streams=streams)


def _bodies(plan: InputPlan) -> list[dict[str, Any]]:
    return [json.loads(call.encode()[0]) for call in make_calls(plan, 0)]


def _resolved(plan: InputPlan) -> InputPlan:
    # A plan of calls asks the server nothing.
    server: Server = None  # type: ignore[assignment]
    return resolve_plan(plan, server)


def test_texts_are_words_of_the_length_that_is_asked_for() -> None:
    (body,) = _bodies(_plan(batch_size=3))
    assert body.keys() == {"input", "model"}
    assert [len(text) for text in body["input"]] == [20, 20, 20]
    assert len(set(body["input"])) == 3
    assert all(text.strip() == text for text in body["input"])
    assert _bodies(_plan(batch_size=3)) == [body]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_each_endpoint_has_its_body(endpoint: str) -> None:
    (body,) = _bodies(_plan(endpoint, string_data="a b"))
    del body["model"]
    assert (
        body
        == {
            "embeddings": {"input": "a b"},
            "rerank": {"query": "a b", "documents": ["a b"]},
            "decisions": {
                "input": "a b",
                "questions": [{"type": "predicate", "instructions": "a b"}],
            },
            "completions": {"prompt": "a b"},
            "chat": {"messages": [{"role": "user", "content": "a b"}]},
        }[endpoint]
    )


def test_fields_of_flags_are_in_each_body() -> None:
    plan = _plan("chat", True, version="2", parameters=(("max_tokens", 8),), priority=3)
    (body,) = _bodies(plan)
    assert body["model"] == "m/2"
    assert (body["max_tokens"], body["priority"], body["stream"]) == (8, 3, True)
    assert _bodies(replace(plan, path="/openai/v1/chat/completions")) == [body]
    assert body["stream_options"] == {"include_usage": True}


def test_files_are_perf_analyzers(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    payloads = [{"model": "x", "input": ["a", "b"]}, {"input": ["c", "d"]}]
    path.write_text(json.dumps({"data": [{"payload": payloads}, {"payload": payloads[0]}]}))
    plan = _resolved(_plan(input_data=(str(path),)))
    assert [body["input"] for body in _bodies(plan)] == [["a", "b"], ["c", "d"], ["a", "b"]]
    assert {body["model"] for body in _bodies(plan)} == {"m"}
    assert plan.models[0].batch_size == 2
    assert not expects_outputs(plan)


def test_workers_begin_at_different_calls(tmp_path: Path) -> None:
    plan = pickle.loads(pickle.dumps(_resolved(replace(_plan(), distinct_inputs=4))))
    first, second = (make_source(plan, worker, 2) for worker in range(2))
    sent = [first.next_request() for _ in range(4)]
    assert len({request.message for request in sent if request}) == 4
    assert second.next_request() == sent[2]
    first.set_draining(draining=True)
    assert first.next_request() is None


def test_bodies_may_name_the_model(tmp_path: Path) -> None:
    plan = _resolved(replace(_plan(), models=()))
    assert plan.models[0].name == ""
    path = tmp_path / "data.json"
    path.write_text('{"data": [{"payload": {"model": "x"}}]}')
    named = replace(plan, models=(ModelPlan("", input_data=(str(path),)),))
    assert _bodies(named) == [{"model": "x"}]


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (_plan("chat", batch_size=2), "leave the batch size at 1"),
        (_plan("embeddings", True), "only chat and completions have streams"),
        (_plan("v1/other"), "give the bodies"),
        (_plan(input_data=("/nowhere",)), "cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(plan: InputPlan, text: str) -> None:
    with pytest.raises(InputError, match=text):
        make_calls(plan, 0)


@pytest.mark.parametrize("content", ["[", "[]", '{"data": []}', '{"data": [{"payload": [1]}]}'])
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(content)
    with pytest.raises(InputError, match="expected"):
        make_calls(_plan(input_data=(str(path),)), 0)


def test_a_path_is_as_in_perf_analyzer() -> None:
    assert endpoint_path("") == ""
    assert endpoint_path("chat") == endpoint_path("v1/chat/completions") == "/v1/chat/completions"
    assert endpoint_path("/openai/v1/embeddings") == "/openai/v1/embeddings"
    for text in ("nothing", "v1/a b", "v1/a\r\nX: y", "v1/\xe9"):
        with pytest.raises(ValueError, match="expected embeddings, rerank"):
            endpoint_path(text)
