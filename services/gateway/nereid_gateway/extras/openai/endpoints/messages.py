"""Messages that continue a chat, and their number of tokens: Anthropic's API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import orjson
from msgspec import Meta

from nereid.text.mapping import GENERATE
from nereid_gateway.extras.openai.bodies import Body, check_count
from nereid_gateway.extras.openai.errors import InvalidParameter, anthropic_body_of
from nereid_gateway.extras.openai.generation.choices import LENGTH, TOOL_CALLS
from nereid_gateway.extras.openai.generation.event_stream import EventStream
from nereid_gateway.extras.openai.generation.fields import Count, Share, refuse
from nereid_gateway.extras.openai.generation.generator import Generator, Order
from nereid_gateway.extras.openai.generation.messages import (
    FunctionCall,
    Message,
    MessageToolCall,
    template_messages,
    template_tools,
)
from nereid_gateway.extras.openai.generation.sampling import Sampling, check_stop, not_taken
from nereid_gateway.extras.openai.generation.tool_choice import demanded_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.errors import NereidError
    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.extras.openai.generation.choices import Choice
    from nereid_gateway.extras.openai.generation.deltas import TokenLogprob
    from nereid_gateway.extras.openai.generation.requests import Prompt
    from nereid_gateway.extras.openai.generation.tool_calls import ToolCall
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.server.call import HttpCall

# Anthropic names no limit.
_MAX_STOPS: Final = 64
_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking"})
# Fields that blocks of a type have, and those that must not be empty.
_FIELDS: Final = {
    "text": ("text",),
    "thinking": ("thinking",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "redacted_thinking": ("data",),
}
_FILLED: Final = frozenset({"id", "name", "tool_use_id", "data"})


class Block(Body, kw_only=True):
    """Part of a message's content."""

    type: str
    text: str | None = None
    # Calls of tools, and their results, have these.
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    # Thoughts of earlier turns are left out.
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    # Accepted without effect.
    cache_control: Any = None
    citations: Any = None
    caller: Any = None
    # Blocks of these kinds are refused.
    source: Any = None
    title: Any = None
    context: Any = None


class Turn(Body, kw_only=True):
    """Message of a chat."""

    role: str
    content: str | list[Block]


class Tool(Body, kw_only=True):
    """A tool that the model may call."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    # Accepted without effect.
    cache_control: Any = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None


class OutputFormat(Body, kw_only=True):
    """Form of the text."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(Body, kw_only=True):
    """Configuration of the text."""

    format: OutputFormat | None = None
    effort: str | None = None


class PromptFields(Body, kw_only=True):
    """Fields that make the prompt."""

    model: str
    messages: list[Turn]
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    # Accepted without effect.
    cache_control: Any = None

    def check(self) -> None:
        """Raise InvalidParameter for what is not possible here."""
        if self.thinking is not None and self.thinking.get("type") != "disabled":
            raise not_taken("thinking")

    def chat(self) -> list[dict[str, Any]]:
        """Return the messages as chat templates take them."""
        messages = []
        if self.system:
            messages.append(Message(role="system", content=_text_of(self.system, "system")))
        check_count("messages", self.messages)
        for index, turn in enumerate(self.messages):
            if turn.role not in {"user", "assistant"}:
                raise InvalidParameter(
                    f"messages.{index}.role",
                    f"messages.{index}.role: expected 'user' or 'assistant'.",
                )
            messages += _messages_of(turn, f"messages.{index}")
        return template_messages(messages)

    def functions(self) -> list[dict[str, Any]]:
        """Return the tools as chat templates take them."""
        if self.tool_choice is not None and self.tool_choice.get("type") == "none":
            return []
        functions = []
        for index, tool in enumerate(self.tools or ()):
            if tool.type not in {None, "custom"}:
                raise InvalidParameter(
                    f"tools.{index}.type", f"tools.{index}.type: '{tool.type}' is not supported."
                )
            functions.append(
                {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema,
                }
            )
        return template_tools(functions, "tools")

    def demanded_tool(self) -> str | dict[str, Any]:
        """Return the choice of tools as OpenAI has it."""
        choice = self.tool_choice or {"type": "auto"}
        kind = choice.get("type")
        if kind == "tool":
            return {"type": "function", "name": choice.get("name")}
        return "required" if kind == "any" else str(kind)

    def variables(self) -> dict[str, Any]:
        """Return further variables of the template."""
        effort = None if self.output_config is None else self.output_config.effort
        return {} if effort is None else {"reasoning_effort": effort}


class MessagesBody(PromptFields, kw_only=True):
    """Body of /v1/messages."""

    max_tokens: Count
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=1 << 20)] | None = None
    top_p: Share | None = None
    # Accepted without effect.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    speed: str | None = None
    # They need state, or are not possible here.
    container: Any = None
    diagnostics: Any = None
    context_management: Any = None
    mcp_servers: Any = None

    def sampling(self) -> Sampling:
        """Return the parameters of sampling."""
        for name in ("container", "context_management", "mcp_servers"):
            refuse(name, getattr(self, name))
        schema = None
        form = None if self.output_config is None else self.output_config.format
        if form is not None:
            if form.type != "json_schema" or form.schema is None:
                raise InvalidParameter(
                    "output_config.format", "output_config.format: expected a json_schema."
                )
            schema = form.schema
        return Sampling(
            {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k},
            check_stop(self.stop_sequences, "stop_sequences", _MAX_STOPS),
            max_tokens=self.max_tokens,
            schema=schema,
        )


class OpenAiMessages:
    """Handlers of the routes of Anthropic's messages."""

    def __init__(self, services: TextServices, generator: Generator) -> None:
        self._serve = services.serve
        self._generator = generator

    async def create(self, call: HttpCall, _route: Route) -> None:
        """Respond with a message that continues a chat."""
        await self._serve(call, "chat", self._create)

    async def count_tokens(self, call: HttpCall, _route: Route) -> None:
        """Respond with the number of a prompt's tokens."""
        await self._serve(call, "tokenize", self._count_tokens)

    async def _create(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(MessagesBody)
        body.check()
        sampling = body.sampling()
        messages, tools = body.chat(), body.functions()
        parallel = not (body.tool_choice or {}).get("disable_parallel_tool_use")
        demanded = demanded_call(body.demanded_tool(), tools, parallel=parallel)

        async def work(model: TextModel) -> Sequence[bytes]:
            prompt = await self._prompt(call, model, body, messages, tools)
            order = Order(
                [prompt],
                sampling,
                has_tools=bool(tools and not demanded),
                demanded_call=demanded,
                max_calls=128 if parallel else 1,
            )
            if body.stream:
                stream = _MessageStream(call, body, prompt)
                run = stream.run(self._generator, model, order)
                await stream.events.finish(run, _error_event)
                return ()
            (choice,), usage = await self._generator.complete(call, model, order)
            content: list[dict[str, Any]] = []
            text = choice.text
            if text.strip() if choice.calls else text:
                content.append({"type": "text", "text": text})
            content += [_tool_use(call) for call in choice.calls]
            document = {
                **_head(body.model),
                "content": content,
                **_stop_of(choice),
                "usage": {
                    "input_tokens": usage.prompt_tokens,
                    "output_tokens": usage.completion_tokens,
                },
            }
            return (orjson.dumps(document),)

        return await call.with_model(body.model, (GENERATE,), work)

    async def _count_tokens(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(PromptFields)
        body.check()
        messages, tools = body.chat(), body.functions()

        async def work(model: TextModel) -> Prompt:
            if not model.has_tokenizer:
                raise InvalidParameter("model", f"The model '{model.name}' has no tokenizer.")
            return await self._prompt(call, model, body, messages, tools)

        prompt = await call.with_model(body.model, (GENERATE,), work)
        return (orjson.dumps({"input_tokens": prompt.tokens}),)

    async def _prompt(
        self,
        call: TextCall,
        model: TextModel,
        body: PromptFields,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
    ) -> Prompt:
        return await self._generator.chat_prompt(call, model, messages, tools, body.variables())


class _MessageStream:
    def __init__(self, call: TextCall, body: MessagesBody, prompt: Prompt) -> None:
        self.events = EventStream(call.call)
        self._call = call
        self._head = _head(body.model)
        self._prompt_tokens = prompt.tokens
        # Number of content blocks that have begun, and whether the last one has text to come.
        self._blocks = 0
        self._has_text = False

    async def run(self, generator: Generator, model: TextModel, order: Order) -> None:
        (choice,) = await generator.run(self._call, model, order, self)
        usage = await generator.usage(self._call, model, order, [choice])
        counts = {
            "input_tokens": usage.prompt_tokens,
            "output_tokens": usage.completion_tokens,
        }
        last = _event("message_delta", delta=_stop_of(choice), usage=counts)
        self.events.end(last + _event("message_stop"))

    def on_text(self, _choice: Choice, text: str, _logprobs: Sequence[TokenLogprob]) -> None:
        events = self._begin()
        if not self._has_text:
            self._has_text = True
            self._blocks += 1
            events += self._block_start({"type": "text", "text": ""})
        self.events.send(events + self._block_delta({"type": "text_delta", "text": text}))

    def on_tool_call(self, _choice: Choice, call: ToolCall) -> None:
        events = self._begin() + self._end_text()
        self._blocks += 1
        events += self._block_start({**_tool_use(call), "input": {}})
        delta = {"type": "input_json_delta", "partial_json": call.arguments}
        events += self._block_delta(delta) + self._block_stop()
        self.events.send(events)

    def on_finish(self, _choice: Choice) -> None:
        self.events.send(self._begin() + self._end_text())

    def _begin(self) -> bytes:
        if self.events.begun:
            return b""
        message = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self._prompt_tokens, "output_tokens": 0},
        }
        return _event("message_start", message=message)

    def _end_text(self) -> bytes:
        if not self._has_text:
            return b""
        self._has_text = False
        return self._block_stop()

    def _block_start(self, block: dict[str, Any]) -> bytes:
        return _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _block_delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _block_stop(self) -> bytes:
        return _event("content_block_stop", index=self._blocks - 1)


def _event(kind: str, **members: Any) -> bytes:
    document = orjson.dumps({"type": kind, **members})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), document)


def _error_event(error: NereidError) -> bytes:
    return b"event: error\ndata: %b\n\n" % anthropic_body_of(error)


def _head(model: str) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
    }


def _stop_of(choice: Choice) -> dict[str, Any]:
    reason = {LENGTH: "max_tokens", TOOL_CALLS: "tool_use"}.get(choice.finish_reason, "end_turn")
    if choice.stop_text is not None and reason == "end_turn":
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_text}
    return {"stop_reason": reason, "stop_sequence": None}


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": f"toolu_{uuid4().hex[:24]}",
        "name": call.name,
        "input": orjson.loads(call.arguments),
    }


def _messages_of(turn: Turn, place: str) -> list[Message]:
    if isinstance(turn.content, str):
        return [Message(role=turn.role, content=turn.content)]
    # Results of tools come first, as messages of their own.
    check_count(f"{place}.content", turn.content)
    results = []
    texts: list[Block] = []
    calls = []
    for index, block in enumerate(turn.content):
        _check_block(block, f"{place}.content.{index}")
        if block.type == "tool_result":
            content = _text_of(block.content or "", place)
            results.append(Message(role="tool", content=content, tool_call_id=block.tool_use_id))
        elif block.type == "tool_use":
            arguments = orjson.dumps(block.input).decode()
            function = FunctionCall(name=block.name or "", arguments=arguments)
            calls.append(MessageToolCall(id=block.id or "", function=function))
        elif block.type not in _THOUGHTS:
            texts.append(block)
    messages: list[Message] = results
    if texts or calls or not results:
        content = _text_of(texts, place)
        messages.append(Message(role=turn.role, content=content, tool_calls=calls or None))
    return messages


def _check_block(block: Block, place: str) -> None:
    """Raise InvalidParameter for a block that lacks a field of its type."""
    for name in _FIELDS.get(block.type, ()):
        value = getattr(block, name)
        if value is None or (name in _FILLED and not value):
            raise InvalidParameter(f"{place}.{name}", f"{place}.{name}: this field is required.")


def _text_of(content: str | list[Block], place: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, block in enumerate(content):
        if block.type != "text" or block.text is None:
            raise InvalidParameter(
                place,
                f"{place}.content.{index}: a block of type '{block.type[:100]}' is not supported:"
                " this model takes text alone.",
            )
        texts.append(block.text)
    return "\n".join(texts)
