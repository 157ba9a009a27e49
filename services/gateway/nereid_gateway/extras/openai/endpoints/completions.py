"""Texts that continue a prompt: OpenAI's completions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import orjson
from msgspec import Meta

from nereid.text.mapping import GENERATE
from nereid_gateway.extras.openai.bodies import texts_of
from nereid_gateway.extras.openai.endpoints.text_fields import priority_of
from nereid_gateway.extras.openai.errors import InvalidParameter, error_members
from nereid_gateway.extras.openai.generation.event_stream import EventStream
from nereid_gateway.extras.openai.generation.fields import (
    MAX_TEXTS,
    CompletionFields,
    Count,
    Format,
    refuse,
)
from nereid_gateway.extras.openai.generation.generator import Generator, Order
from nereid_gateway.extras.openai.generation.sampling import not_taken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.errors import NereidError
    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.extras.openai.generation.choices import Choice
    from nereid_gateway.extras.openai.generation.deltas import TokenLogprob
    from nereid_gateway.extras.openai.generation.generator import Usage
    from nereid_gateway.extras.openai.generation.requests import Prompt
    from nereid_gateway.extras.openai.generation.tool_calls import ToolCall
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.server.call import HttpCall

DONE = b"data: [DONE]\n\n"


class CompletionsBody(CompletionFields, kw_only=True):
    """Body of /v1/completions."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Count | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool = False
    best_of: int | None = None
    suffix: str | None = None
    response_format: Format | None = None
    add_special_tokens: bool = True


class OpenAiCompletions:
    """Handler of the route of completions."""

    def __init__(self, services: TextServices, generator: Generator) -> None:
        self._serve = services.serve
        self._generator = generator

    async def create(self, call: HttpCall, _route: Route) -> None:
        """Respond with texts that continue prompts."""
        await self._serve(call, "text_completion", self._create)

    async def _create(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(CompletionsBody)
        call.priority = priority_of(body.priority)
        count = body.n or 1
        prompts = texts_of(body.prompt, "prompt")
        _check(body, count, len(prompts))
        includes_usage = body.includes_usage

        async def work(model: TextModel) -> Sequence[bytes]:
            sampling = body.sampling()._replace(
                max_tokens=body.max_tokens or 0,
                logprobs=body.logprobs,
                schema=None if body.response_format is None else body.response_format.schema(),
            )
            order = Order(
                [await self._prompt(call, model, body, prompt) for prompt in prompts],
                sampling,
                count,
                prompt_parameter="prompt",
            )
            if body.stream:
                stream = _CompletionStream(call, body, order, includes_usage=includes_usage)
                await stream.events.finish(stream.run(self._generator, model), event_of)
                return ()
            choices, usage = await self._generator.complete(call, model, order)
            documents = [_choice(choice, body, order) for choice in choices]
            head = _head(body.model)
            return (orjson.dumps({**head, "choices": documents, "usage": usage_document(usage)}),)

        return await call.with_model(body.model, (GENERATE,), work)

    async def _prompt(
        self, call: TextCall, model: TextModel, body: CompletionsBody, prompt: Any
    ) -> Prompt:
        if isinstance(prompt, str):
            special = body.add_special_tokens
            return await self._generator.text_prompt(call, model, prompt, special=special)
        return await self._generator.token_prompt(call, model, prompt)


def _check(body: CompletionsBody, count: int, prompts: int) -> None:
    if count * prompts > MAX_TEXTS:
        raise InvalidParameter(
            "prompt",
            f"{prompts} prompts with 'n' {count} make {count * prompts} texts, more than"
            f" {MAX_TEXTS}; send several requests.",
            "array_above_max_length",
        )
    refuse("suffix", body.suffix or None)
    if body.best_of not in {None, count}:
        raise not_taken("best_of")
    if body.echo and body.logprobs is not None:
        raise InvalidParameter(
            "echo",
            "Unsupported parameter: 'echo' is not possible with 'logprobs', since models give none"
            " for a prompt.",
            "unsupported_parameter",
        )


class _CompletionStream:
    def __init__(
        self, call: TextCall, body: CompletionsBody, order: Order, *, includes_usage: bool
    ) -> None:
        self.events = EventStream(call.call)
        self._call = call
        self._body = body
        self._order = order
        self._includes_usage = includes_usage
        self._head = _head(body.model)
        # Chunks differ in their choices alone.
        self._start = b'data: %b,"choices":[' % orjson.dumps(self._head)[:-1]
        self._end = b'],"usage":null}\n\n' if includes_usage else b"]}\n\n"
        self._offsets: dict[int, int] = {}

    async def run(self, generator: Generator, model: TextModel) -> None:
        order = self._order
        if self._body.echo:
            for index in range(len(order.prompts) * order.texts_each):
                self._send(index, order.prompts[index // order.texts_each].text)
        choices = await generator.run(self._call, model, order, self)
        usage = await generator.usage(self._call, model, order, choices)
        last = b""
        if self._includes_usage:
            document = {**self._head, "choices": [], "usage": usage_document(usage)}
            last = b"data: %b\n\n" % orjson.dumps(document)
        self.events.end(last + DONE)

    def on_text(self, choice: Choice, text: str, logprobs: Sequence[TokenLogprob]) -> None:
        written = None
        if self._body.logprobs is not None:
            offset = self._offsets.get(choice.index, 0)
            written = _logprobs(logprobs, offset)
            self._offsets[choice.index] = offset + len(text)
        self._send(choice.index, text, written)

    def on_tool_call(self, choice: Choice, call: ToolCall) -> None:
        """Do nothing: completions have no tools."""

    def on_finish(self, choice: Choice) -> None:
        self._send(choice.index, "", reason=choice.finish_reason)

    def _send(self, index: int, text: str, logprobs: Any = None, reason: str | None = None) -> None:
        document = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        self.events.send(self._start + orjson.dumps(document) + self._end)


def _choice(choice: Choice, body: CompletionsBody, order: Order) -> dict[str, Any]:
    text = choice.text
    if body.echo:
        text = order.prompts[choice.index // order.texts_each].text + text
    logprobs = None if body.logprobs is None else _logprobs(choice.logprobs, 0)
    return {
        "index": choice.index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
    }


def _logprobs(tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [dict(token.top) for token in tokens],
        "text_offset": offsets,
    }


def _head(model: str) -> dict[str, Any]:
    return {
        "id": f"cmpl-{uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }


def usage_document(usage: Usage) -> dict[str, Any]:
    """Return the number of tokens as OpenAI has it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def event_of(error: NereidError) -> bytes:
    """Return the events that end a stream with an error."""
    return b"data: %b\n\n%b" % (orjson.dumps({"error": error_members(error)}), DONE)
