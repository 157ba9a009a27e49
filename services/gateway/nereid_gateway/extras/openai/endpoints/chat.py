"""Messages that continue a chat: OpenAI's chat completions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import orjson

from nereid.text.mapping import GENERATE
from nereid_gateway.extras.openai.bodies import Body
from nereid_gateway.extras.openai.endpoints.completions import (
    DONE,
    event_of,
    usage_document,
)
from nereid_gateway.extras.openai.endpoints.text_fields import priority_of
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.generation.choices import STOP, TOOL_CALLS
from nereid_gateway.extras.openai.generation.event_stream import EventStream
from nereid_gateway.extras.openai.generation.fields import (
    CompletionFields,
    Count,
    Format,
    TopLogprobs,
    refuse,
)
from nereid_gateway.extras.openai.generation.generator import Generator, Order
from nereid_gateway.extras.openai.generation.messages import (
    Message,
    template_messages,
    template_tools,
)
from nereid_gateway.extras.openai.generation.sampling import not_taken
from nereid_gateway.extras.openai.generation.tool_choice import demanded_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.extras.openai.generation.choices import Choice
    from nereid_gateway.extras.openai.generation.deltas import TokenLogprob
    from nereid_gateway.extras.openai.generation.tool_calls import ToolCall
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.server.call import HttpCall


class Tool(Body, kw_only=True):
    """A function that the model may call."""

    type: str
    function: dict[str, Any] | None = None
    # Accepted without effect.
    cache_control: Any = None


def functions_of(tools: Sequence[Tool] | None) -> list[dict[str, Any]]:
    """Return the functions of tools; raise InvalidParameter for tools of other types."""
    functions = []
    for index, tool in enumerate(tools or ()):
        if tool.type != "function" or tool.function is None:
            raise InvalidParameter(
                f"tools[{index}].type",
                f"Invalid value: '{tool.type[:100]}'. Supported values are: 'function'.",
                "invalid_value",
            )
        functions.append(tool.function)
    return functions


class ChatBody(CompletionFields, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: list[Message]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: Format | None = None
    # Variables of the template.
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    # Accepted without effect.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    # No model here takes these.
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: list[str] | None = None
    moderation: Any = None
    prediction: Any = None
    verbosity: str | None = None
    web_search_options: Any = None

    def check(self) -> None:
        """Raise InvalidParameter for what no model takes."""
        for name in _REFUSED:
            refuse(name, getattr(self, name))
        if self.modalities not in (None, ["text"]):
            raise not_taken("modalities")
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidParameter(
                "top_logprobs",
                "Invalid value for 'top_logprobs': it needs 'logprobs' to be true.",
                "invalid_value",
            )

    def functions_of_tools(self) -> list[dict[str, Any]]:
        """Return the functions that the model may call, none if the client wants no call."""
        functions = functions_of(self.tools)
        return [] if self.tool_choice == "none" else functions


_REFUSED = (
    "audio",
    "function_call",
    "functions",
    "moderation",
    "prediction",
    "verbosity",
    "web_search_options",
    "continue_final_message",
)


class OpenAiChat:
    """Handler of the route of chat completions."""

    def __init__(self, services: TextServices, generator: Generator) -> None:
        self._serve = services.serve
        self._generator = generator

    async def create(self, call: HttpCall, _route: Route) -> None:
        """Respond with a message that continues a chat."""
        await self._serve(call, "chat", self._create)

    async def _create(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(ChatBody)
        call.priority = priority_of(body.priority)
        body.check()
        messages = template_messages(body.messages)
        tools = template_tools(body.functions_of_tools(), "tools")
        parallel = body.parallel_tool_calls is not False
        demanded = demanded_call(body.tool_choice, tools, parallel=parallel)
        includes_usage = body.includes_usage

        async def work(model: TextModel) -> Sequence[bytes]:
            order = await self._order(call, model, body, messages, tools)
            order = order._replace(
                has_tools=bool(tools and not demanded),
                demanded_call=demanded,
                max_calls=128 if parallel else 1,
            )
            if body.stream:
                stream = _ChatStream(call, body, includes_usage=includes_usage)
                await stream.events.finish(stream.run(self._generator, model, order), event_of)
                return ()
            choices, usage = await self._generator.complete(call, model, order)
            return (
                orjson.dumps(
                    {
                        **_head(body.model, "chat.completion"),
                        "choices": [_choice(choice, body) for choice in choices],
                        "usage": usage_document(usage),
                    }
                ),
            )

        return await call.with_model(body.model, (GENERATE,), work)

    async def _order(
        self,
        call: TextCall,
        model: TextModel,
        body: ChatBody,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
    ) -> Order:
        variables = dict(body.chat_template_kwargs or {})
        variables["add_generation_prompt"] = body.add_generation_prompt
        if body.reasoning_effort is not None:
            variables["reasoning_effort"] = body.reasoning_effort
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        return Order(
            [await self._generator.chat_prompt(call, model, messages, tools, variables)],
            body.sampling()._replace(
                max_tokens=body.max_completion_tokens or body.max_tokens or 0,
                logprobs=logprobs,
                schema=None if body.response_format is None else body.response_format.schema(),
            ),
            body.n or 1,
            limit_parameter=limit,
        )


class _ChatStream:
    def __init__(self, call: TextCall, body: ChatBody, *, includes_usage: bool) -> None:
        self.events = EventStream(call.call)
        self._call = call
        self._body = body
        self._has_logprobs = bool(body.logprobs)
        self._includes_usage = includes_usage
        self._head = _head(body.model, "chat.completion.chunk")
        # Chunks differ in their choices alone.
        self._start = b'data: %b,"choices":[' % orjson.dumps(self._head)[:-1]
        self._end = b'],"usage":null}\n\n' if includes_usage else b"]}\n\n"
        self._begun: set[int] = set()

    async def run(self, generator: Generator, model: TextModel, order: Order) -> None:
        choices = await generator.run(self._call, model, order, self)
        usage = await generator.usage(self._call, model, order, choices)
        last = b""
        if self._includes_usage:
            document = {**self._head, "choices": [], "usage": usage_document(usage)}
            last = b"data: %b\n\n" % orjson.dumps(document)
        self.events.end(last + DONE)

    def on_text(self, choice: Choice, text: str, logprobs: Sequence[TokenLogprob]) -> None:
        written = {"content": _logprobs(logprobs)} if self._has_logprobs else None
        self._send(choice, {"content": text}, written)

    def on_tool_call(self, choice: Choice, call: ToolCall) -> None:
        document = {"index": len(choice.calls) - 1, **_tool_call(call)}
        self._send(choice, {"tool_calls": [document]})

    def on_finish(self, choice: Choice) -> None:
        self._send(choice, {}, reason=_reason(choice, self._body))

    def _send(
        self,
        choice: Choice,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        reason: str | None = None,
    ) -> None:
        events = b""
        if choice.index not in self._begun:
            self._begun.add(choice.index)
            first = {"role": "assistant", "content": ""}
            events = self._chunk(choice.index, first, None, None)
        self.events.send(events + self._chunk(choice.index, delta, logprobs, reason))

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None,
        reason: str | None,
    ) -> bytes:
        document = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._start + orjson.dumps(document) + self._end


def _choice(choice: Choice, body: ChatBody) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.calls:
        message["content"] = choice.text.strip() or None
        message["tool_calls"] = [_tool_call(call) for call in choice.calls]
    logprobs = None
    if body.logprobs:
        logprobs = {"content": _logprobs(choice.logprobs), "refusal": None}
    return {
        "index": choice.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": _reason(choice, body),
    }


def _reason(choice: Choice, body: ChatBody) -> str:
    if choice.finish_reason == TOOL_CALLS and isinstance(body.tool_choice, dict):
        # The model had no choice, so OpenAI does not call it one.
        return STOP
    return choice.finish_reason


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function}


def _logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    return [
        {
            **_token(token.token, token.logprob),
            "top_logprobs": [_token(text, logprob) for text, logprob in token.top],
        }
        for token in tokens
    ]


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _head(model: str, kind: Literal["chat.completion", "chat.completion.chunk"]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }
