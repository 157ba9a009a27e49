"""Generated texts over a whole mesh, by OpenAI's, Anthropic's and LangChain's clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import anthropic
import numpy as np
import openai
import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import SecretStr

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.mesh.perf_analyzer import analyze, needs_analyzer
from tests.support.models import generators

pytestmark = pytest.mark.slow

AT_ONCE = 16
GENERATORS = ("vllm", "tensorrt_llm", "own")
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALLS = "".join(
    f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>\n'
    for city in ("Kiel", "Ulm")
)


class Site(NamedTuple):
    mesh: Mesh
    repository: Path
    openai: openai.OpenAI
    anthropic: anthropic.Anthropic
    # Closes clients.
    stack: ExitStack

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.mesh.http_port}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    repository = tmp_path_factory.mktemp("generators")
    generators.python_generator(repository / "vllm", "vllm")
    generators.python_generator(repository / "tensorrt_llm", "tensorrt_llm", with_tokenizer=False)
    section = {"parameters": ["temperature", "seed"], "tool_parser": "hermes"}
    generators.python_generator(repository / "own", "own", generation=section)
    generators.python_generator(repository / "ids", "ids")
    generators.logits_generator(repository / "logits")
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(repository, log, "--openai-api") as mesh, ExitStack() as stack:
        url = f"http://127.0.0.1:{mesh.http_port}"
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        other = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        stack.enter_context(client)
        stack.enter_context(other)
        yield Site(mesh, repository, client, other, stack)


def user(content: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": content}]


def plan(**members: Any) -> str:
    return json.dumps(members)


def reported(content: str | None) -> dict[str, Any]:
    """What a model says that it got."""
    got: dict[str, Any] = json.loads(bytes.fromhex(content or ""))
    return got


@pytest.mark.parametrize("model", GENERATORS)
def test_a_chat_at_once_and_streamed(site: Site, model: str) -> None:
    text = "héllo wörld 😀"
    create = site.openai.chat.completions.create
    whole = create(model=model, messages=user(text), max_tokens=100)
    (choice,) = whole.choices
    assert (choice.message.content, choice.finish_reason) == (text, "stop")
    assert choice.message.role == "assistant"
    prompt_bytes = len(f"<user>{text}<assistant>".encode())
    prompt_tokens = {"vllm": 77, "tensorrt_llm": 0, "own": prompt_bytes}[model]
    completion_tokens = len(text) if model != "own" else len(text.encode())
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == prompt_tokens
    assert whole.usage.completion_tokens == completion_tokens
    chunks = list(
        create(
            model=model,
            messages=user(text),
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=100,
        )
    )
    *parts, last = chunks
    assert [chunk.choices[0].delta.content for chunk in parts] == ["", *text, None]
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-1].choices[0].finish_reason == "stop"
    assert (last.choices, last.usage) == ([], whole.usage)
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("model", GENERATORS)
def test_completions(site: Site, model: str) -> None:
    create = site.openai.completions.create
    got = create(model=model, prompt=["<user>one", "<user>two"], n=2, max_tokens=2, echo=True)
    assert [choice.text for choice in got.choices] == ["<user>oneon"] * 2 + ["<user>twotw"] * 2
    assert [choice.index for choice in got.choices] == [0, 1, 2, 3]
    assert {choice.finish_reason for choice in got.choices} == {"length"}
    events = create(model=model, prompt="<user>a STOP b", stop=["STOP", "x"], stream=True)
    parts = [event.choices[0] for event in events]
    assert "".join(part.text for part in parts) == "a "
    assert parts[-1].finish_reason == "stop"


def test_parameters_reach_the_model(site: Site) -> None:
    options: dict[str, Any] = {"temperature": 0.5, "seed": 4, "stop": ["<"], "max_tokens": 9999}
    create = site.openai.chat.completions.create
    messages = user(plan(report=True))
    seen = {
        model: reported(got.choices[0].message.content)
        for model in GENERATORS
        for got in [create(model=model, messages=messages, **options)]
    }
    inputs = seen["vllm"]["inputs"]
    assert json.loads(inputs["sampling_parameters"][0]) == {**options}
    assert inputs["stream"] == inputs["exclude_input_in_output"] == [True]
    inputs = seen["tensorrt_llm"]["inputs"]
    assert {name: inputs[name] for name in ("temperature", "random_seed", "max_tokens")} == {
        "temperature": [0.5],
        "random_seed": [4],
        "max_tokens": [9999],
    }
    assert inputs["stop_words"] == ["<"]
    assert seen["own"]["parameters"] == {"temperature": 0.5, "seed": 4}
    got = create(model="tensorrt_llm", messages=messages)
    # The input is not optional, so it gets the usual limit.
    assert reported(got.choices[0].message.content)["inputs"]["max_tokens"] == [256]


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"top_p": 0.5}, "top_p"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"n": 1000}, "n"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"temperature": 3}, "temperature"),
        ({"seed": 1 << 64}, "seed"),
        ({"extra_body": {"zoom": 1}}, "zoom"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
        ),
    ],
)
def test_what_a_model_does_not_take_is_refused_by_name(
    site: Site, options: dict[str, Any], parameter: str
) -> None:
    asked: dict[str, Any] = {"model": "own", "messages": user("hi"), **options}
    with pytest.raises(openai.BadRequestError) as refused:
        site.openai.chat.completions.create(**asked)
    assert refused.value.param == parameter


def test_neutral_values_and_those_without_effect_are_accepted(site: Site) -> None:
    got = site.openai.chat.completions.create(
        model="own",
        messages=user("hi"),
        top_p=1,
        presence_penalty=0,
        user="somebody",
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
    )
    assert got.choices[0].message.content == "hi"


def test_tools(site: Site) -> None:
    messages = user(plan(say=f"Let me see.\n{CALLS}"))
    completions = site.openai.chat.completions
    whole = completions.create(model="own", messages=messages, tools=TOOLS)
    with completions.stream(model="own", messages=messages, tools=TOOLS) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    for choice in (whole.choices[0], streamed.choices[0]):
        assert choice.finish_reason == "tool_calls"
        assert (choice.message.content or "").strip() == "Let me see."
        calls = choice.message.tool_calls
        assert calls is not None
        assert [call.function.arguments for call in calls if call.type == "function"] == [
            '{"city": "Kiel"}',
            '{"city": "Ulm"}',
        ]
    # The conversation goes on, with the calls and their results.
    follow: Any = [*messages, whole.choices[0].message.model_dump(exclude_none=True)]
    follow += [{"role": "tool", "tool_call_id": "x", "content": "rain"}, *user("And?")]
    got = completions.create(model="own", messages=follow, tools=TOOLS)
    assert got.choices[0].message.content == "And?"
    one = completions.create(model="own", messages=messages, tools=TOOLS, parallel_tool_calls=False)
    assert len(one.choices[0].message.tool_calls or ()) == 1
    none = completions.create(model="own", messages=messages, tools=TOOLS, tool_choice="none")
    assert CALLS in (none.choices[0].message.content or "")
    with pytest.raises(openai.BadRequestError) as refused:
        completions.create(model="tensorrt_llm", messages=messages, tools=TOOLS)
    assert refused.value.param == "tools"


def test_responses(site: Site) -> None:
    create = site.openai.responses.create
    got = create(model="own", input="hello", instructions="Be nice")
    assert (got.output_text, got.status) == ("hello", "completed")
    assert got.usage is not None
    assert got.usage.input_tokens == len("<system>Be nice<user>hello<assistant>")
    assert create(model="own", input="hello", max_output_tokens=2).status == "incomplete"
    tool: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    asked = plan(say=f"So: {CALLS}")
    with site.openai.responses.stream(model="own", input=asked, tools=[tool]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]
    assert final.output_text.strip() == "So:"
    with pytest.raises(openai.BadRequestError) as refused:
        create(model="own", input="hi", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "Kiel?"}]},
        {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "rain"},
        {"type": "message", "role": "user", "content": "And Ulm?"},
    ]
    assert create(model="own", input=items, tools=[tool]).output_text == "And Ulm?"


def test_anthropics_client(site: Site) -> None:
    messages = site.anthropic.messages
    got = messages.create(
        model="own",
        max_tokens=99,
        system="Be nice",
        messages=[{"role": "user", "content": "hello world"}],
        stop_sequences=["wor"],
    )
    assert [block.text for block in got.content if block.type == "text"] == ["hello "]
    assert (got.stop_reason, got.stop_sequence) == ("stop_sequence", "wor")
    assert got.usage.input_tokens == len("<system>Be nice<user>hello world<assistant>")
    count = messages.count_tokens(model="own", messages=[{"role": "user", "content": "hi"}])
    assert count.input_tokens == len("<user>hi<assistant>")
    asked = plan(say=f"Let me see.\n{CALLS}")
    tool: Any = {"name": "weather", "input_schema": {"type": "object"}}
    with messages.stream(
        model="own",
        max_tokens=999,
        messages=[{"role": "user", "content": asked}],
        tools=[tool],
    ) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert [block.input for block in final.content if block.type == "tool_use"] == [
        {"city": "Kiel"},
        {"city": "Ulm"},
    ]
    cut = messages.create(
        model="own", max_tokens=3, messages=[{"role": "user", "content": "hello"}]
    )
    assert cut.stop_reason == "max_tokens"
    with pytest.raises(anthropic.NotFoundError) as missing:
        messages.create(model="none", max_tokens=3, messages=[{"role": "user", "content": "x"}])
    body: Any = missing.value.body
    assert body["error"]["type"] == "not_found_error"


def test_demanded_calls_of_all_apis(site: Site) -> None:
    arguments = {"city": "Kiel"}
    named = plan(say=json.dumps(arguments))
    listed = plan(say=json.dumps([{"name": "weather", "arguments": arguments}]))
    tool: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    choices: list[Any] = [{"type": "function", "name": "weather"}, "required"]
    for text, choice in zip((named, listed), choices, strict=True):
        got = site.openai.responses.create(
            model="vllm", input=text, tools=[tool], tool_choice=choice
        )
        (item,) = got.output
        assert item.type == "function_call"
        assert (item.name, json.loads(item.arguments)) == ("weather", arguments)
    own: Any = {"name": "weather", "input_schema": {"type": "object"}}
    rules: list[Any] = [{"type": "tool", "name": "weather"}, {"type": "any"}]
    for text, rule in zip((named, listed), rules, strict=True):
        message = site.anthropic.messages.create(
            model="vllm",
            max_tokens=999,
            messages=[{"role": "user", "content": text}],
            tools=[own],
            tool_choice=rule,
        )
        (block,) = message.content
        assert block.type == "tool_use"
        assert (block.name, block.input, message.stop_reason) == ("weather", arguments, "tool_use")


def test_a_model_of_token_ids(site: Site) -> None:
    text = "häh 😀"
    got = site.openai.completions.create(model="ids", prompt=text)
    assert (got.choices[0].text, got.choices[0].finish_reason) == (text, "stop")
    assert got.usage is not None
    # The token that ends the text counts.
    assert got.usage.completion_tokens == got.usage.prompt_tokens + 1 == len(text.encode()) + 1
    ids = generators.tokenizer().encode("abc").ids
    parts = list(site.openai.completions.create(model="ids", prompt=[ids], stream=True))
    assert "".join(part.choices[0].text for part in parts) == "abc"
    cut = site.openai.completions.create(model="ids", prompt="abcdef", max_tokens=3)
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == ("abc", "length")


def test_a_model_of_logits(site: Site) -> None:
    create = site.openai.completions.create
    tokens = generators.tokenizer()
    got = create(model="logits", prompt="a", temperature=0, max_tokens=5, logprobs=1)
    last = tokens.encode("a").ids[-1]
    expected = []
    for _ in range(5):
        last = int(generators.logits_of(site.repository / "logits", last).argmax())
        expected.append(last)
    assert got.choices[0].text == tokens.decode(expected)
    assert got.choices[0].logprobs is not None
    logits = generators.logits_of(site.repository / "logits", tokens.encode("a").ids[-1])
    best = logits.max() - np.log(np.exp(logits).sum())
    assert np.isclose((got.choices[0].logprobs.token_logprobs or [0])[0], best, atol=1e-4)
    again = [create(model="logits", prompt="a", seed=5, max_tokens=9, n=2) for _ in range(2)]
    texts = [[choice.text for choice in each.choices] for each in again]
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]
    with pytest.raises(openai.BadRequestError) as refused:
        create(model="logits", prompt="a" * 300)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="token id 99999 is not below") as refused:
        create(model="logits", prompt="a", logit_bias={"99999": 1})
    assert refused.value.param == "logit_bias"


def test_json_by_a_schema(site: Site) -> None:
    schema = {
        "type": "object",
        "properties": {
            "size": {"type": "integer", "minimum": 10, "maximum": 99},
            "a": {"enum": ["x", "y"]},
        },
        "required": ["size", "a"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    create = site.openai.chat.completions.create
    for seed in range(5):
        got = create(
            model="logits", messages=user("x"), seed=seed, response_format=form, max_tokens=200
        )
        document = json.loads(got.choices[0].message.content or "")
        assert 10 <= document["size"] <= 99
        assert document["a"] in {"x", "y"}
        assert got.choices[0].finish_reason == "stop"
    form["json_schema"]["schema"] = {"type": "nothing"}
    with pytest.raises(openai.BadRequestError) as refused:
        create(model="logits", messages=user("x"), response_format=form)
    assert refused.value.code == "invalid_json_schema"
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "nothing"}}}
    with pytest.raises(openai.BadRequestError) as refused:
        create(model="logits", messages=user("x"), tools=[tool], tool_choice="required")
    assert (refused.value.code, refused.value.param) == ("invalid_json_schema", "tool_choice")


def test_a_call_without_a_model_that_no_model_fits(site: Site) -> None:
    with pytest.raises(openai.NotFoundError, match="No loaded model can do this") as missing:
        site.openai.moderations.create(input="x")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")


def test_langchains_chat(site: Site) -> None:
    chat = ChatOpenAI(
        model="own",
        base_url=f"{site.url}/v1",
        api_key=SecretStr("none"),
        http_client=site.stack.enter_context(openai.DefaultHttpxClient()),
    )
    assert chat.invoke([HumanMessage("hello")]).content == "hello"
    chunks = list(chat.stream([HumanMessage("hello")]))
    assert "".join(str(chunk.content) for chunk in chunks) == "hello"
    bound = chat.bind_tools([dict(TOOLS[0])])
    got = bound.invoke([HumanMessage(plan(say=CALLS))])
    assert [call["args"] for call in got.tool_calls] == [{"city": "Kiel"}, {"city": "Ulm"}]


@needs_analyzer
@pytest.mark.parametrize("streams", [False, True])
def test_perf_analyzer(site: Site, tmp_path: Path, streams: bool) -> None:
    payload = {"model": "vllm", "messages": user("hello"), "stream": streams}
    inputs, export = tmp_path / "inputs.json", tmp_path / "export.json"
    inputs.write_text(json.dumps({"data": [{"payload": [payload]}]}))
    flags = "--service-kind=openai", "--endpoint=v1/chat/completions", f"--input-data={inputs}"
    counts = "--async", "--concurrency-range=4", "--request-count=40"
    analyze(site.mesh, "http", "vllm", *flags, *counts, f"--profile-export-file={export}")
    (experiment,) = json.loads(export.read_text())["experiments"]
    for request in experiment["requests"]:
        outputs = "".join(output["response"] for output in request["response_outputs"])
        assert "[DONE]" in outputs if streams else '"content":"hello"' in outputs


async def drop_streams(site: Site, count: int) -> None:
    """Open streams of long texts, and leave each after a random number of tokens."""
    random = Random(count)
    slots = asyncio.Semaphore(AT_ONCE)

    async def drop(client: openai.AsyncOpenAI, tokens: int) -> None:
        async with slots:
            stream = await client.chat.completions.create(
                model="own", messages=user(plan(say="x" * 5000, pause_s=0.01)), stream=True
            )
            async with stream:
                for _ in range(tokens):
                    await anext(stream)

    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="none") as client:
        await asyncio.gather(*(drop(client, random.randrange(20)) for _ in range(count)))
    await asyncio.to_thread(
        until,
        lambda: "nereid_gateway_pending_requests 0" in site.mesh.metrics(),
        "the gateway to have no request",
    )

    def running() -> int:
        got = site.openai.chat.completions.create(model="own", messages=user(plan(report=True)))
        threads: int = reported(got.choices[0].message.content)["running"]
        return threads

    # The request that asks runs as well.
    await asyncio.to_thread(until, lambda: running() == 1, "the model to stop")


async def test_dropped_streams_leave_nothing(site: Site) -> None:
    await drop_streams(site, 100)


@pytest.mark.nightly
async def test_a_thousand_dropped_streams_leave_nothing(site: Site) -> None:
    await drop_streams(site, 1000)
