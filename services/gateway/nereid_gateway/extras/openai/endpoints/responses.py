"""OpenAI's responses, without the state that its servers keep between them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from nereid.text.mapping import GENERATE
from nereid_gateway.extras.openai.bodies import Body, check_count
from nereid_gateway.extras.openai.errors import InvalidParameter, error_members
from nereid_gateway.extras.openai.generation.choices import LENGTH
from nereid_gateway.extras.openai.generation.event_stream import EventStream
from nereid_gateway.extras.openai.generation.fields import (
    Count,
    Share,
    Temperature,
    TopLogprobs,
    refuse,
)
from nereid_gateway.extras.openai.generation.generator import Generator, Order
from nereid_gateway.extras.openai.generation.messages import (
    FunctionCall,
    Message,
    MessageToolCall,
    Part,
    template_messages,
    template_tools,
)
from nereid_gateway.extras.openai.generation.sampling import Sampling, not_taken
from nereid_gateway.extras.openai.generation.tool_choice import demanded_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.errors import NereidError
    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.extras.openai.generation.choices import Choice
    from nereid_gateway.extras.openai.generation.deltas import TokenLogprob
    from nereid_gateway.extras.openai.generation.generator import Usage
    from nereid_gateway.extras.openai.generation.tool_calls import ToolCall
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.server.call import HttpCall

_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text"})


class InputPart(Body, kw_only=True):
    """Part of a message."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None
    logprobs: Any = None
    # Parts of these kinds are refused.
    image_url: Any = None
    file_id: Any = None
    file_data: Any = None
    file_url: Any = None
    filename: Any = None
    detail: Any = None
    input_audio: Any = None


class InputItem(Body, kw_only=True):
    """A message, a call of a function, or its output."""

    type: str = "message"
    id: str | None = None
    status: str | None = None
    role: str = "user"
    content: str | list[InputPart] | None = None
    phase: str | None = None
    # Calls have these.
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


class TextFormat(Body, kw_only=True):
    """Form of the text."""

    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(Body, kw_only=True):
    """Configuration of the text."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Body, kw_only=True):
    """Effort of the model's thoughts, which is a variable of its template."""

    effort: str | None = None
    summary: Any = None


class ResponsesBody(Body, kw_only=True):
    """Body of /v1/responses."""

    model: str
    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_logprobs: TopLogprobs | None = None
    include: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    stream: bool | None = None
    # Accepted without effect.
    stream_options: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    truncation: str | None = None
    # They need state, or are not possible here.
    background: bool | None = None
    background_options: Any = None
    context_management: Any = None
    conversation: Any = None
    image: Any = None
    max_tool_calls: int | None = None
    moderation: Any = None
    previous_response_id: str | None = None
    prompt: Any = None
    access_programs: Any = None

    def check(self) -> None:
        """Raise InvalidParameter for what is not possible here."""
        for name in _REFUSED:
            refuse(name, getattr(self, name))
        if self.truncation not in {None, "disabled"}:
            raise not_taken("truncation")
        if self.text is not None:
            refuse("text.verbosity", self.text.verbosity)
        for included in self.include or ():
            if included not in _INCLUDABLE:
                raise not_taken("include")

    @property
    def has_logprobs(self) -> bool:
        """True if the client asks for logprobs."""
        return "message.output_text.logprobs" in (self.include or ()) or bool(self.top_logprobs)

    def schema(self) -> dict[str, Any] | None:
        """Return the schema of the text, an empty one for any object; None for text."""
        form = None if self.text is None else self.text.format
        if form is None or form.type == "text":
            return None
        if form.type == "json_object":
            return {}
        if form.type != "json_schema" or form.schema is None:
            raise InvalidParameter(
                "text.format",
                "Invalid value for 'text.format': expected text, json_object, or json_schema with"
                " a schema.",
                "invalid_value",
            )
        return form.schema


_REFUSED: Final = (
    "background",
    "background_options",
    "context_management",
    "conversation",
    "image",
    "max_tool_calls",
    "moderation",
    "previous_response_id",
    "prompt",
    "access_programs",
)
_INCLUDABLE: Final = frozenset({"message.output_text.logprobs", "reasoning.encrypted_content"})


class OpenAiResponses:
    """Handler of the route of responses."""

    def __init__(self, services: TextServices, generator: Generator) -> None:
        self._serve = services.serve
        self._generator = generator

    async def create(self, call: HttpCall, _route: Route) -> None:
        """Respond with a response."""
        await self._serve(call, "generate_content", self._create)

    async def _create(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(ResponsesBody)
        body.check()
        messages = template_messages(messages_of(body))
        tools = [] if body.tool_choice == "none" else tools_of(body)
        parallel = body.parallel_tool_calls is not False
        demanded = demanded_call(body.tool_choice, tools, parallel=parallel)

        async def work(model: TextModel) -> Sequence[bytes]:
            variables = {}
            if body.reasoning is not None and body.reasoning.effort is not None:
                variables["reasoning_effort"] = body.reasoning.effort
            prompt = await self._generator.chat_prompt(call, model, messages, tools, variables)
            values = {"temperature": body.temperature, "top_p": body.top_p}
            order = Order(
                [prompt],
                Sampling(
                    values,
                    max_tokens=body.max_output_tokens or 0,
                    logprobs=(body.top_logprobs or 0) if body.has_logprobs else None,
                    schema=body.schema(),
                ),
                has_tools=bool(tools and not demanded),
                demanded_call=demanded,
                max_calls=128 if parallel else 1,
                prompt_parameter="input",
                limit_parameter="max_output_tokens",
            )
            response = _Response(body)
            if body.stream:
                stream = _ResponseStream(call, response)
                run = stream.run(self._generator, model, order)
                await stream.events.finish(run, stream.encode_error)
                return ()
            (choice,), usage = await self._generator.complete(call, model, order)
            return (msgspec.json.encode(response.completed(choice, _items(choice), usage)),)

        return await call.with_model(body.model, (GENERATE,), work)


def messages_of(body: ResponsesBody) -> list[Message]:
    """Return the messages of a body. Raises InvalidParameter."""
    messages = []
    if body.instructions:
        messages.append(Message(role="system", content=body.instructions))
    if isinstance(body.input, str):
        messages.append(Message(role="user", content=body.input))
        return messages
    check_count("input", body.input)
    for index, item in enumerate(body.input):
        place = f"input[{index}]"
        match item.type:
            case "message":
                messages.append(Message(role=item.role, content=_parts(item.content, place)))
            case "function_call":
                function = FunctionCall(name=item.name or "", arguments=item.arguments or "{}")
                call = MessageToolCall(id=item.call_id or "", function=function)
                last = messages[-1] if messages else None
                if last is not None and last.role == "assistant":
                    last.tool_calls = [*(last.tool_calls or ()), call]
                else:
                    messages.append(Message(role="assistant", tool_calls=[call]))
            case "function_call_output":
                content = _parts(item.output, place)
                messages.append(
                    Message(role="tool", content=content or "", tool_call_id=item.call_id)
                )
            case "reasoning":
                # Models here get no thoughts of earlier turns, as with OpenAI's.
                continue
            case _:
                raise InvalidParameter(
                    f"{place}.type",
                    f"Invalid value: '{item.type[:100]}'. Supported values are: 'message',"
                    " 'function_call', and 'function_call_output'.",
                    "invalid_value",
                )
    return messages


def _parts(content: str | list[InputPart] | None, place: str) -> str | list[Part] | None:
    if content is None or isinstance(content, str):
        return content
    check_count(f"{place}.content", content)
    parts = []
    for index, part in enumerate(content):
        if part.type == "refusal":
            parts.append(Part(type="refusal", refusal=part.refusal or ""))
        elif part.type in _TEXT_PARTS and part.text is not None:
            parts.append(Part(type="text", text=part.text))
        else:
            raise InvalidParameter(
                f"{place}.content[{index}].type",
                f"Invalid value: '{part.type[:100]}': this model takes text alone.",
                "invalid_value",
            )
    return parts


def tools_of(body: ResponsesBody) -> list[dict[str, Any]]:
    """Return the tools of a body as chat templates take them. Raises InvalidParameter."""
    for index, tool in enumerate(body.tools or ()):
        if tool.get("type") != "function":
            raise InvalidParameter(
                f"tools[{index}].type",
                f"Invalid value: {str(tool.get('type'))[:100]!r}. Supported values are:"
                " 'function'.",
                "invalid_value",
            )
    return template_tools(body.tools or (), "tools")


def _text_item(text: str, status: str, logprobs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return {
        "id": name,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [_text_part(text, logprobs)],
    }


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _call_item(call: ToolCall, status: str = "completed") -> dict[str, Any]:
    return {
        "id": f"fc_{uuid4().hex}",
        "type": "function_call",
        "status": status,
        "call_id": f"call_{uuid4().hex[:24]}",
        "name": call.name,
        "arguments": call.arguments,
    }


def _items(choice: Choice) -> list[dict[str, Any]]:
    items = []
    text = choice.text
    if text.strip() if choice.calls else True:
        status = "incomplete" if choice.finish_reason == LENGTH else "completed"
        logprobs = [_logprob(token) for token in choice.logprobs]
        items.append(_text_item(text, status, logprobs, f"msg_{uuid4().hex}"))
    return items + [_call_item(call) for call in choice.calls]


def _logprob(token: TokenLogprob) -> dict[str, Any]:
    def document(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    top = [document(text, logprob) for text, logprob in token.top]
    return {**document(token.token, token.logprob), "top_logprobs": top}


class _Response:
    """The document of a response, which events repeat as it grows."""

    def __init__(self, body: ResponsesBody) -> None:
        tools = [] if body.tools is None else body.tools
        form = {"type": "text"}
        if body.text is not None and body.text.format is not None:
            written = body.text.format
            form = {"type": written.type}
            if written.schema is not None:
                form = {
                    "type": written.type,
                    "name": written.name or "",
                    "schema": written.schema,  # type: ignore[dict-item]
                    "strict": written.strict,  # type: ignore[dict-item]
                }
        self._members: dict[str, Any] = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {
                "effort": None if body.reasoning is None else body.reasoning.effort,
                "summary": None,
            },
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": form},
            "tool_choice": body.tool_choice or "auto",
            "tools": tools,
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "background": False,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_tool_calls": None,
            "safety_identifier": body.safety_identifier,
            "prompt_cache_key": body.prompt_cache_key,
            "service_tier": "default",
            "usage": None,
            "user": body.user,
        }

    def begun(self) -> dict[str, Any]:
        """Return the response before its output."""
        return self._members

    def completed(
        self, choice: Choice, items: list[dict[str, Any]], usage: Usage
    ) -> dict[str, Any]:
        """Return the response with its output."""
        is_complete = choice.finish_reason != LENGTH
        return {
            **self._members,
            "status": "completed" if is_complete else "incomplete",
            "completed_at": int(time.time()) if is_complete else None,
            "incomplete_details": None if is_complete else {"reason": "max_output_tokens"},
            "output": items,
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        }

    def failed(self, error: NereidError) -> dict[str, Any]:
        """Return the response after an error."""
        members = error_members(error)
        code = {"rate_limit_exceeded": "rate_limit_exceeded"}.get(members["code"] or "")
        failure = {"code": code or "server_error", "message": members["message"]}
        return {**self._members, "status": "failed", "error": failure}


class _ResponseStream:
    def __init__(self, call: TextCall, response: _Response) -> None:
        self.events = EventStream(call.call)
        self._call = call
        self._response = response
        self._number = 0
        self._items: list[dict[str, Any]] = []
        self._text_id = ""
        self._text: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    async def run(self, generator: Generator, model: TextModel, order: Order) -> None:
        (choice,) = await generator.run(self._call, model, order, self)
        usage = await generator.usage(self._call, model, order, [choice])
        document = self._response.completed(choice, self._items, usage)
        kind = f"response.{document['status']}"
        self.events.end(self._event(kind, response=document))

    def on_text(self, _choice: Choice, text: str, logprobs: Sequence[TokenLogprob]) -> None:
        events = b""
        if not self._text_id:
            events = self._begin() + self._begin_text()
        written = [_logprob(token) for token in logprobs]
        self._text.append(text)
        self._logprobs += written
        events += self._event(
            "response.output_text.delta", **self._text_place(), delta=text, logprobs=written
        )
        self.events.send(events)

    def on_tool_call(self, _choice: Choice, call: ToolCall) -> None:
        events = self._begin() + self._end_text("completed")
        item = _call_item(call)
        position = len(self._items)
        place = {"item_id": item["id"], "output_index": position}
        self._items.append(item)
        started = {**item, "arguments": "", "status": "in_progress"}
        events += self._event("response.output_item.added", output_index=position, item=started)
        kind = "response.function_call_arguments"
        arguments = call.arguments
        events += self._event(f"{kind}.delta", **place, delta=arguments)
        events += self._event(f"{kind}.done", **place, arguments=arguments, name=call.name)
        events += self._event("response.output_item.done", output_index=position, item=item)
        self.events.send(events)

    def on_finish(self, choice: Choice) -> None:
        status = "incomplete" if choice.finish_reason == LENGTH else "completed"
        events = self._begin()
        if not self._items and not self._text_id:
            events += self._begin_text()
        self.events.send(events + self._end_text(status))

    def encode_error(self, error: NereidError) -> bytes:
        return self._event("response.failed", response=self._response.failed(error))

    def _begin(self) -> bytes:
        if self._number:
            return b""
        document = self._response.begun()
        return self._event("response.created", response=document) + self._event(
            "response.in_progress", response=document
        )

    def _begin_text(self) -> bytes:
        self._text_id = f"msg_{uuid4().hex}"
        item = {**_text_item("", "in_progress", [], self._text_id), "content": []}
        return self._event(
            "response.output_item.added", output_index=len(self._items), item=item
        ) + self._event(
            "response.content_part.added", **self._text_place(), part=_text_part("", [])
        )

    def _end_text(self, status: str) -> bytes:
        if not self._text_id:
            return b""
        text, logprobs = "".join(self._text), self._logprobs
        place = self._text_place()
        item = _text_item(text, status, logprobs, self._text_id)
        events = (
            self._event("response.output_text.done", **place, text=text, logprobs=logprobs)
            + self._event("response.content_part.done", **place, part=_text_part(text, logprobs))
            + self._event("response.output_item.done", output_index=len(self._items), item=item)
        )
        self._items.append(item)
        self._text_id, self._text, self._logprobs = "", [], []
        return events

    def _text_place(self) -> dict[str, Any]:
        return {"item_id": self._text_id, "output_index": len(self._items), "content_index": 0}

    def _event(self, kind: str, **members: Any) -> bytes:
        document = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(document))
