"""Published tests of Triton's OpenAI front end in their meaning: triton_front_end.tsv has all."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, NamedTuple

import numpy as np
import openai
import pytest
from onnx import TensorProto

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import e2e_models, generators, text_models

pytestmark = pytest.mark.slow

PROMPT = "What is machine learning?"
MAX_BODY = 100_000
LOADED = ("mock_llm", "vllm", "tool_stream_py", "llama", "logits", "all-MiniLM-L6-v2")
LATER = ("later", "later_too")
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, **more},
                "required": ["city", *more],
            },
        },
    }
    for name, more in (
        ("get_current_weather", {"unit": {"enum": ["celsius", "fahrenheit"]}}),
        ("get_n_day_weather_forecast", {"num_days": {"type": "integer"}}),
    )
]
FORECAST = {"type": "function", "function": {"name": "get_n_day_weather_forecast"}}
DALLAS = {"city": "Dallas", "unit": "fahrenheit"}


class Site(NamedTuple):
    mesh: Mesh
    client: openai.OpenAI

    def send(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a request."""
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        connection = http.client.HTTPConnection(self.mesh.http, timeout=20)
        try:
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        return response.status, json.loads(text) if text.startswith(b"{") else {}

    def chat(self, **options: Any) -> Any:
        """What the client makes of a chat; it decides by its options whether that is a stream."""
        return self.client.chat.completions.create(**options)

    def complete(self, **options: Any) -> Any:
        return self.client.completions.create(**options)

    def refused(self, path: str, body: dict[str, Any]) -> tuple[str | None, str]:
        """The parameter and the message of the error for a wrong body."""
        status, document = self.send("POST", path, body)
        assert status == HTTPStatus.BAD_REQUEST, document
        error = document["error"]
        assert error["type"] == "invalid_request_error"
        return error["param"], error["message"]

    def listed(self) -> set[str]:
        return {model.id for model in self.client.models.list()}

    def control(self, model: str, action: str) -> int:
        return self.send("POST", f"/v1/models/{model}/{action}")[0]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    repository = tmp_path_factory.mktemp("models")
    make = generators.python_generator
    make(repository / "mock_llm", "mock_llm", template="")
    make(repository / "vllm", "vllm", generation={"tool_parser": "hermes"})
    parser = {"tool_parser": "mistral"}
    make(repository / "tool_stream_py", "tool_stream_py", with_tokenizer=False, generation=parser)
    make(repository / "llama", "vllm", generation={"tool_parser": "llama3_json"})
    for name in LATER:
        make(repository / name, "mock_llm", template="")
    generators.logits_generator(repository / "logits", max_tokens=2000)
    text_models.export(repository / "all-MiniLM-L6-v2")
    e2e_models.save_identity(repository, "identity_py", TensorProto.FLOAT, "")
    log = tmp_path_factory.mktemp("mesh") / "log"
    flags = ["--openai-api", "--model-control-mode=explicit", f"--http-max-input-size={MAX_BODY}"]
    flags += [f"--load-model={name}" for name in (*LOADED, "identity_py")]
    with (
        running(repository, log, *flags) as mesh,
        openai.OpenAI(base_url=f"http://{mesh.http}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Site(mesh, client)


def user(content: str = PROMPT) -> list[Any]:
    return [{"role": "user", "content": content}]


def plan(**members: Any) -> list[Any]:
    """Messages that tell a model what to do."""
    return user(json.dumps(members))


def reported(content: str | None) -> dict[str, Any]:
    """The inputs that a model got."""
    inputs: dict[str, Any] = json.loads(bytes.fromhex(content or ""))["inputs"]
    return inputs


@pytest.mark.parametrize(
    "messages",
    [
        user(),
        [{"role": "system", "content": "You know Triton."}, *user()],
        [{"role": "system", "content": "You know Triton."}],
        [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}],
    ],
)
@pytest.mark.parametrize("options", [{}, {"stream": False}])
def test_a_chat(site: Site, messages: list[Any], options: dict[str, Any]) -> None:
    got = site.chat(model="logits", messages=messages, max_tokens=9, **options)
    (choice,) = got.choices
    assert choice.message.content
    assert choice.message.role == "assistant"


@pytest.mark.parametrize("model", ["vllm", "tool_stream_py", "mock_llm", "logits"])
def test_usage(site: Site, model: str) -> None:
    usages = [site.complete(model=model, prompt=PROMPT, max_tokens=99).usage]
    if model != "mock_llm":
        usages.append(site.chat(model=model, messages=user(), max_tokens=99).usage)
    for usage in usages:
        assert usage is not None
        # The mock model counts no tokens, and has no tokenizer.
        assert (usage.prompt_tokens > 0) == (model != "mock_llm")
        assert usage.completion_tokens > 0
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


VALUES: dict[str, Any] = {
    "temperature": 0.7,
    "max_tokens": 10,
    "top_p": 0.9,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.2,
    "logit_bias": {"0": 0},
    "min_tokens": 16,
    "ignore_eos": True,
}


@pytest.mark.parametrize("name", VALUES)
def test_a_parameter_reaches_the_model(site: Site, name: str) -> None:
    asked = {"model": "vllm", "messages": plan(report=True), name: VALUES[name]}
    status, document = site.send("POST", "/v1/chat/completions", asked)
    assert status == HTTPStatus.OK, document
    inputs = reported(document["choices"][0]["message"]["content"])
    assert json.loads(inputs["sampling_parameters"][0])[name] == VALUES[name]
    asked = {"model": "logits", "prompt": "a", "max_tokens": 20, name: VALUES[name]}
    status, document = site.send("POST", "/v1/completions", asked)
    assert status == HTTPStatus.OK, document
    assert document["choices"][0]["text"]


@pytest.mark.parametrize(
    "options",
    [{"n": 1}, {"stop": "."}, {"stop": []}, {"stop": [".", ","]}, {"max_completion_tokens": 10}],
)
def test_parameters_that_the_gateway_applies(site: Site, options: dict[str, Any]) -> None:
    got = site.chat(model="vllm", messages=user(), **options)
    assert got.choices[0].message.content == PROMPT[: options.get("max_completion_tokens", 99)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("max_tokens", -1),
        ("top_p", 1.1),
        ("frequency_penalty", 3),
        ("frequency_penalty", -3),
        ("presence_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("min_tokens", -1),
        ("ignore_eos", 123),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(site: Site, name: str, value: Any) -> None:
    chat = {"model": "vllm", "messages": user(), name: value}
    assert site.refused("/v1/chat/completions", chat)[0] == name
    if name == "max_tokens":
        chat = {"model": "vllm", "messages": user(), "max_completion_tokens": value}
        assert site.refused("/v1/chat/completions", chat)[0] == "max_completion_tokens"
    text = {"model": "vllm", "prompt": PROMPT, name: value}
    assert site.refused("/v1/completions", text)[0] == name


def test_limits_of_tokens(site: Site) -> None:
    def chat(**limits: int) -> str:
        got = site.chat(model="logits", messages=user(), temperature=0, **limits)
        return got.choices[0].message.content or ""

    for name in ("max_tokens", "max_completion_tokens"):
        short, again, long = chat(**{name: 1}), chat(**{name: 1}), chat(**{name: 50})
        assert short == again
        assert len(short) == 1
        assert len(long) > 1
    assert chat(max_tokens=50, max_completion_tokens=1) == short
    asked: dict[str, Any] = {"model": "logits", "prompt": PROMPT, "temperature": 0}
    short, again, long = (
        site.complete(**asked, max_tokens=limit).choices[0].text for limit in (1, 1, 50)
    )
    assert short == again
    assert len(short) == 1
    assert len(long) > 1


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_seed_and_temperature(site: Site, kind: str) -> None:
    def text(**options: Any) -> Any:
        options |= {"model": "logits", "max_tokens": 30}
        if kind == "chat":
            got = site.chat(messages=user(), **options)
            return got.choices[0].message.content
        return site.complete(prompt=PROMPT, **options).choices[0].text

    assert text(temperature=0.0) == text(temperature=0.0) != text(temperature=1.0, seed=3)
    assert text(seed=1) == text(seed=1) != text(seed=2)


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"model": "vllm", "messages": []}, "messages"),
        ({"model": "vllm", "messages": [{}]}, "messages[0].role"),
        ({"model": "vllm", "messages": user(), "top_logprobs": 0}, "top_logprobs"),
        ({"model": "vllm", "messages": user(), "top_logprobs": 5}, "top_logprobs"),
        (
            {"model": "vllm", "messages": user(), "logprobs": True, "top_logprobs": 25},
            "top_logprobs",
        ),
        ({"model": "mock_llm", "messages": user()}, "messages"),
        (
            {"model": "vllm", "messages": user(), "stream_options": {"include_usage": True}},
            "stream_options",
        ),
    ],
)
def test_a_wrong_chat_is_refused_by_name(site: Site, body: dict[str, Any], parameter: str) -> None:
    assert site.refused("/v1/chat/completions", body)[0] == parameter


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({}, "model"),
        ({"prompt": PROMPT}, "model"),
        ({"model": "vllm"}, "prompt"),
        ({"model": "vllm", "prompt": PROMPT, "logprobs": 25}, "logprobs"),
        ({"model": "vllm", "prompt": PROMPT, "best_of": 2}, "best_of"),
        ({"model": "vllm", "prompt": PROMPT, "n": 2, "best_of": 1}, "best_of"),
        (
            {"model": "vllm", "prompt": PROMPT, "stream_options": {"include_usage": True}},
            "stream_options",
        ),
    ],
)
def test_a_wrong_completion_is_refused_by_name(
    site: Site, body: dict[str, Any], parameter: str
) -> None:
    assert site.refused("/v1/completions", body)[0] == parameter


def test_several_texts_and_an_empty_prompt(site: Site) -> None:
    asked: dict[str, Any] = {"model": "vllm", "messages": user(), "n": 2}
    assert len(site.send("POST", "/v1/chat/completions", asked)[1]["choices"]) == 2
    for more in ({"n": 2}, {"n": 2, "best_of": 2}):
        asked = {"model": "vllm", "prompt": PROMPT, **more}
        assert len(site.send("POST", "/v1/completions", asked)[1]["choices"]) == 2
    asked = {"model": "vllm", "prompt": ""}
    assert site.send("POST", "/v1/completions", asked)[0] == HTTPStatus.OK


@pytest.mark.parametrize("model", ["vllm", "mock_llm"])
def test_echo(site: Site, model: str) -> None:
    assert site.complete(model=model, prompt=PROMPT, echo=True).choices[0].text == PROMPT * 2
    assert site.complete(model=model, prompt=PROMPT, echo=False).choices[0].text == PROMPT


@pytest.mark.parametrize("model", ["vllm", "logits"])
def test_logprobs_whole_and_streamed(site: Site, model: str) -> None:
    options: dict[str, Any] = {"model": model, "max_tokens": 10, "temperature": 0, "seed": 0}
    asked = {**options, "messages": user(), "logprobs": True, "top_logprobs": 2}
    whole = site.chat(**asked).choices[0].logprobs
    assert whole is not None
    assert whole.content
    for token in whole.content:
        assert bytes(token.bytes or ()).decode() == token.token
        assert token.logprob <= 0
        assert token.top_logprobs
    parts = [chunk.choices[0].logprobs for chunk in site.chat(**asked, stream=True)]
    assert [token for part in parts if part for token in part.content or ()] == whole.content
    assert (
        site.chat(**{**options, "messages": user(), "logprobs": False}).choices[0].logprobs is None
    )

    text = {**options, "prompt": PROMPT, "logprobs": 3}
    found = site.complete(**text).choices[0].logprobs
    assert found is not None
    assert found.tokens
    assert len(found.tokens) == len(found.token_logprobs or ()) == len(found.top_logprobs or ())
    streamed: dict[str, list[Any]] = {}
    for chunk in site.complete(**text, stream=True):
        if chunk.choices[0].logprobs:
            for name, values in chunk.choices[0].logprobs.model_dump().items():
                streamed.setdefault(name, []).extend(values or [])
    assert streamed == found.model_dump()


def test_no_alternatives_of_tokens(site: Site) -> None:
    got = site.complete(model="logits", prompt="a", max_tokens=3, logprobs=0)
    logprobs = got.choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs.token_logprobs or ()) == 3
    assert logprobs.top_logprobs == [{}, {}, {}]


@pytest.mark.parametrize("stop", [None, "ac", ["ac"], ["ac", ".", ","]])
@pytest.mark.parametrize("model", ["vllm", "tool_stream_py"])
def test_a_stream_is_the_whole_text(site: Site, model: str, stop: Any) -> None:
    asked: dict[str, Any] = {"model": model, "messages": user(), "stop": stop, "max_tokens": 64}
    whole = site.chat(**asked).choices[0]
    chunks = list(site.chat(**asked, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas if delta.role] == ["assistant"]
    texts = [delta.content for delta in deltas if delta.content]
    assert len(texts) > 1
    assert "".join(texts) == whole.message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert [*filter(None, reasons)] == [reasons[-1]] == [whole.finish_reason]
    assert {chunk.usage for chunk in chunks} == {None}
    text: dict[str, Any] = {"model": model, "prompt": PROMPT, "max_tokens": 10, "temperature": 0}
    parts = [chunk.choices[0] for chunk in site.complete(**text, stream=True)]
    once = site.complete(**text).choices[0]
    assert "".join(part.text for part in parts) == once.text
    assert [part.finish_reason for part in parts if part.finish_reason] == [once.finish_reason]


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_usage_at_the_end_of_a_stream(site: Site, kind: str) -> None:
    def create(**options: Any) -> Any:
        options |= {"model": "vllm", "max_tokens": 16}
        if kind == "chat":
            return site.chat(messages=user(), **options)
        return site.complete(prompt=PROMPT, **options)

    whole = create()
    without = list(create(stream=True, stream_options={"include_usage": False}))
    having = list(create(stream=True, stream_options={"include_usage": True}))
    assert {chunk.usage for chunk in (*without, *having[:-1])} == {None}
    assert len(having) == len(without) + 1
    assert having[-1].choices == []
    assert having[-1].usage == whole.usage


async def test_the_asynchronous_client(site: Site) -> None:
    url = str(site.client.base_url)
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        assert set(LOADED) <= {model.id async for model in client.models.list()}
        text = await client.completions.create(model="vllm", prompt=PROMPT)
        chat = await client.chat.completions.create(model="vllm", messages=user())
    for choice in (text.choices[0], chat.choices[0]):
        assert choice.finish_reason == "stop"


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_embeddings(site: Site, encoding: str | None) -> None:
    text = "the cat sat on the mat"
    ids = text_models.tokenizer().encode(text).ids
    vectors = []
    for given in (text, ids):
        body: dict[str, Any] = {"model": "all-MiniLM-L6-v2", "input": given}
        if encoding is not None:
            body["encoding_format"] = encoding
        status, document = site.send("POST", "/v1/embeddings", body)
        assert status == HTTPStatus.OK
        (item,) = document["data"]
        assert (item["object"], item["index"], document["model"]) == (
            "embedding",
            0,
            "all-MiniLM-L6-v2",
        )
        assert document["usage"] == {"prompt_tokens": len(ids), "total_tokens": len(ids)}
        vector = item["embedding"]
        if encoding == "base64":
            vector = np.frombuffer(base64.b64decode(vector), np.float32)
        vectors.append(np.array(vector))
    assert np.allclose(vectors[0], vectors[1], atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "parameter"),
    [
        ({"encoding_format": "invalid"}, "encoding_format"),
        ({"encoding_format": 0}, "encoding_format"),
        ({"model": 123}, "model"),
        ({"input": []}, "input"),
        *(({"input": value}, "input") for value in (123, 1.5, 0, None)),
    ],
)
def test_a_wrong_embedding_is_refused_by_name(
    site: Site, changed: dict[str, Any], parameter: str
) -> None:
    body = {"model": "all-MiniLM-L6-v2", "input": "cat", **changed}
    assert site.refused("/v1/embeddings", body)[0] == parameter


def test_an_embedding_lacks_something(site: Site) -> None:
    assert site.refused("/v1/embeddings", {})[0] == "input"
    # Only one of the models embeds.
    assert site.send("POST", "/v1/embeddings", {"input": "cat"})[0] == HTTPStatus.OK
    assert site.refused("/v1/embeddings", {"model": "all-MiniLM-L6-v2"})[0] == "input"
    for name in ("", "Invalid"):
        status, document = site.send("POST", "/v1/embeddings", {"model": name, "input": "cat"})
        assert (status, document["error"]["code"]) == (HTTPStatus.NOT_FOUND, "model_not_found")
    # The model decides what an empty text means.
    empty = {"model": "all-MiniLM-L6-v2", "input": ""}
    assert site.send("POST", "/v1/embeddings", empty)[0] == HTTPStatus.OK


CALL = {"name": "get_current_weather", "arguments": DALLAS}
WRITTEN = {
    "vllm": f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>",
    "tool_stream_py": f"[TOOL_CALLS][{json.dumps(CALL)}]",
    "llama": json.dumps({"name": CALL["name"], "parameters": DALLAS}),
}


class Streamed(NamedTuple):
    """What a stream has of a message."""

    content: str
    names: list[str]
    arguments: list[str]
    ids: list[str]
    reasons: list[str]


def streamed(site: Site, **options: Any) -> Streamed:
    got = Streamed("", [], [], [], [])
    for chunk in site.chat(stream=True, **options):
        (choice,) = chunk.choices
        got = got._replace(content=got.content + (choice.delta.content or ""))
        for call in choice.delta.tool_calls or ():
            if call.id:
                got.ids.append(call.id)
            if call.function and call.function.name:
                got.names.append(call.function.name)
            if call.function and call.function.arguments:
                got.arguments.append(call.function.arguments)
        if choice.finish_reason:
            got.reasons.append(choice.finish_reason)
    return got


@pytest.mark.parametrize("model", WRITTEN)
def test_a_model_calls_a_tool(site: Site, model: str) -> None:
    options: dict[str, Any] = {"model": model, "messages": plan(say=WRITTEN[model]), "tools": TOOLS}
    choice = site.chat(**options).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == (CALL["name"], DALLAS)
    assert len(call.id) >= 9
    got = streamed(site, **options)
    assert (got.names, got.reasons) == ([CALL["name"]], ["tool_calls"])
    assert json.loads("".join(got.arguments)) == DALLAS
    assert len(got.ids[0]) >= 9


@pytest.mark.parametrize("model", WRITTEN)
def test_a_chat_with_the_result_of_a_call(site: Site, model: str) -> None:
    call = {"id": "call_123456", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        *user("How is Dallas?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_123456", "content": "98 degrees"},
        *user("So?"),
    ]
    options: dict[str, Any] = {"model": model, "messages": messages, "tools": TOOLS}
    choice = site.chat(**options).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("stop", "So?")
    assert choice.message.tool_calls is None
    got = streamed(site, **options)
    assert (got.content, got.names, got.reasons) == ("So?", [], ["stop"])


def test_a_named_tool_is_called(site: Site) -> None:
    arguments = {"city": "Dallas", "num_days": 7}
    for model in ("vllm", "tool_stream_py"):
        options: dict[str, Any] = {
            "model": model,
            "messages": plan(say=json.dumps(arguments)),
            "tools": TOOLS,
            "tool_choice": FORECAST,
        }
        choice = site.chat(**options).choices[0]
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert call.function.name == "get_n_day_weather_forecast"
        assert json.loads(call.function.arguments) == arguments
        assert choice.finish_reason == "stop"
        got = streamed(site, **options)
        assert (got.names, got.reasons) == (["get_n_day_weather_forecast"], ["stop"])
        assert json.loads("".join(got.arguments)) == arguments


def test_a_call_is_demanded(site: Site) -> None:
    for model in ("vllm", "tool_stream_py"):
        options: dict[str, Any] = {
            "model": model,
            "messages": plan(say=json.dumps([CALL])),
            "tools": TOOLS,
            "tool_choice": "required",
        }
        choice = site.chat(**options).choices[0]
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == (CALL["name"], DALLAS)
        assert choice.finish_reason == "tool_calls"
        got = streamed(site, **options)
        assert (got.names, got.reasons) == ([CALL["name"]], ["tool_calls"])


def test_a_model_of_logits_calls_the_named_tool(site: Site) -> None:
    unit = {
        "type": "object",
        "properties": {"unit": {"enum": ["c", "f"]}},
        "required": ["unit"],
        "additionalProperties": False,
    }
    tools: list[Any] = [{"type": "function", "function": {"name": "set", "parameters": unit}}]
    named: Any = {"type": "function", "function": {"name": "set"}}
    for choice in (named, "required"):
        got = site.chat(model="logits", messages=user(), tools=tools, tool_choice=choice, seed=1)
        (call, *_) = got.choices[0].message.tool_calls
        assert call.type == "function"
        assert json.loads(call.function.arguments)["unit"] in {"c", "f"}


def test_the_schema_of_a_demanded_call_reaches_the_model(site: Site) -> None:
    # The text is no JSON object, so it stays the content.
    options: dict[str, Any] = {"messages": plan(report=True), "tools": TOOLS}
    schema = TOOLS[1]["function"]["parameters"]
    message = site.chat(model="tool_stream_py", tool_choice=FORECAST, **options).choices[0].message
    inputs = reported(message.content)
    assert inputs["guided_decoding_guide_type"] == ["json_schema"]
    assert json.loads(inputs["guided_decoding_guide"][0]) == schema
    message = site.chat(model="vllm", tool_choice=FORECAST, **options).choices[0].message
    packed = json.loads(reported(message.content)["sampling_parameters"][0])
    assert json.loads(packed["structured_outputs"]) == {"json": schema}
    form: Any = {"type": "json_object"}
    asked: dict[str, Any] = {"messages": plan(report=True), "response_format": form}
    inputs = reported(site.chat(model="tool_stream_py", **asked).choices[0].message.content)
    assert inputs["guided_decoding_guide_type"] == ["json"]
    assert "guided_decoding_guide" not in inputs
    inputs = reported(site.chat(model="vllm", **asked).choices[0].message.content)
    packed = json.loads(inputs["sampling_parameters"][0])
    assert json.loads(packed["structured_outputs"]) == {"json_object": True}


@pytest.mark.parametrize(
    ("tools", "choice"),
    [(None, FORECAST), (TOOLS[:1], FORECAST), ([], "required"), (TOOLS, "some"), (TOOLS, {})],
)
def test_tools_and_their_choice_do_not_fit(site: Site, tools: Any, choice: Any) -> None:
    asked = {"model": "vllm", "messages": user(), "tool_choice": choice}
    if tools is not None:
        asked["tools"] = tools
    assert site.refused("/v1/chat/completions", asked)[0] == "tool_choice"


def test_long_arguments_of_a_call(site: Site) -> None:
    call = {"name": CALL["name"], "arguments": {"city": "A" * 20_000}}
    parts = [f"[TOOL_CALLS][{json.dumps(call)}]"]
    messages = plan(parts=[parts[0][at : at + 512] for at in range(0, len(parts[0]), 512)])
    got = streamed(site, model="tool_stream_py", messages=messages, tools=TOOLS)
    assert (got.names, got.reasons) == ([CALL["name"]], ["tool_calls"])
    assert json.loads("".join(got.arguments)) == call["arguments"]
    plain = streamed(site, model="tool_stream_py", messages=messages)
    assert (plain.content, plain.reasons) == (parts[0], ["stop"])


def test_health_metrics_and_models(site: Site) -> None:
    assert site.send("GET", "/does-not-exist")[0] == HTTPStatus.NOT_FOUND
    assert site.send("GET", "/v2/health/ready")[0] == HTTPStatus.OK
    assert "nv_cpu_utilization" in site.mesh.metrics()
    models = {model.id: model for model in site.client.models.list()}
    # Models without texts are not those of this API.
    assert set(LOADED) <= models.keys()
    assert "identity_py" not in models
    for model in (models["mock_llm"], site.client.models.retrieve("mock_llm")):
        assert (model.id, model.object, model.owned_by) == ("mock_llm", "model", "nereid")
        assert model.created > 0


SENT = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")


def chunks_of(size: int) -> Iterator[bytes]:
    yield b"x" * (size - 1)
    yield b"x"


@pytest.mark.parametrize("path", SENT)
@pytest.mark.parametrize("chunked", [False, True])
def test_the_limit_of_bodies(site: Site, path: str, chunked: bool) -> None:
    def status(size: int) -> tuple[int, dict[str, Any]]:
        return site.send("POST", path, chunks_of(size) if chunked else b"x" * size)

    assert status(MAX_BODY)[0] == HTTPStatus.BAD_REQUEST
    refused, document = status(MAX_BODY + 1)
    assert refused == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert document["error"]["code"] == "content_too_large"
    assert document["error"]["type"] == "invalid_request_error"
    assert site.send("GET", path)[0] == HTTPStatus.METHOD_NOT_ALLOWED


@pytest.mark.parametrize("length", ["not-a-number", "", "-1", "-1024"])
def test_a_wrong_content_length(site: Site, length: str) -> None:
    headers = {"Content-Length": length}
    assert site.send("POST", SENT[0], b"", **headers)[0] == HTTPStatus.BAD_REQUEST


def completes(site: Site, model: str) -> int:
    asked = {"model": model, "prompt": PROMPT, "max_tokens": 10}
    status, document = site.send("POST", "/v1/completions", asked)
    if status == HTTPStatus.OK:
        assert document["choices"][0]["text"]
        assert document["choices"][0]["finish_reason"] == "length"
    else:
        assert document["error"]["code"] == "model_not_found"
    return status


def test_models_are_loaded_and_unloaded(site: Site) -> None:
    for name in LATER:
        assert name not in site.listed()
        assert completes(site, name) == HTTPStatus.NOT_FOUND
    for name in LATER:
        status, document = site.send("POST", f"/v1/models/{name}/load")
        assert (status, document["id"], document["object"]) == (HTTPStatus.OK, name, "model")
    for index, name in enumerate(LATER):
        assert set(LATER[index:]) <= site.listed()
        assert site.client.models.retrieve(name).id == name
        again = site.refused(f"/v1/models/{name}/load", {})
        assert again == (None, f"Model '{name}' is already loaded")
        assert completes(site, name) == HTTPStatus.OK
        unloaded = site.send("POST", f"/v1/models/{name}/unload")
        assert unloaded == (HTTPStatus.OK, {"status": "success", "model": name})
        assert name not in site.listed()
        assert completes(site, name) == HTTPStatus.NOT_FOUND
        assert site.send("GET", f"/v1/models/{name}")[0] == HTTPStatus.NOT_FOUND
        assert site.control(name, "load") == HTTPStatus.OK
        assert completes(site, name) == HTTPStatus.OK
        assert site.control(name, "unload") == HTTPStatus.OK


def test_many_load_and_unload_at_once(site: Site) -> None:
    for action in ("load", "unload"):
        with ThreadPoolExecutor(10) as pool:
            calls = [pool.submit(site.control, name, action) for name in LATER for _ in range(5)]
        results = sorted(call.result() for call in calls)
        assert results == [HTTPStatus.OK] * 2 + [HTTPStatus.BAD_REQUEST] * 8
        assert (set(LATER) <= site.listed()) == (action == "load")
    with ThreadPoolExecutor(10) as pool:
        actions = [(name, action) for name in LATER for action in ("load", "unload")] * 3
        calls = [pool.submit(site.control, *each) for each in actions]
    assert {call.result() for call in calls} <= {HTTPStatus.OK, HTTPStatus.BAD_REQUEST}
    # The last of them may still be acted on.
    until(lambda: site.send("GET", "/v2/health/ready")[0] == HTTPStatus.OK, "the mesh to be ready")
    for name in LATER:
        site.control(name, "unload")
    assert not set(LATER) & site.listed()


@pytest.mark.parametrize(
    "name",
    ["unknown_model", "..", "%2e%2e", "%20%20", "%0A%09", "a%2Fb", "model/..", "/etc/passwd"],
)
def test_a_model_that_there_is_not(site: Site, name: str) -> None:
    # On Triton, the load of an unknown model is the server's error.
    refusals = {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.INTERNAL_SERVER_ERROR}
    for action in ("load", "unload"):
        assert site.control(name, action) in refusals
    assert site.listed() == set(LOADED)
