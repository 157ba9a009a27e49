"""Generation for one call: prompts in the model's form, texts, and the number of tokens."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.bounded_cache import BoundedCache
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.generation.choices import (
    Choice,
    ChoiceLimits,
    Listener,
    SilentListener,
)
from nereid_gateway.extras.openai.generation.deltas import DeltaReader, ResponseReader
from nereid_gateway.extras.openai.generation.grammars import Grammars
from nereid_gateway.extras.openai.generation.logits import LogitsText, Sampler
from nereid_gateway.extras.openai.generation.requests import Prompt, build_request
from nereid_gateway.extras.openai.generation.sampling import fitting_values, not_taken
from nereid_gateway.extras.openai.generation.streams import ChoiceStreams
from nereid_gateway.extras.openai.texts.tokenizer import TokenLimit, Tokens

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.extras.openai.generation.sampling import Sampling
    from nereid_gateway.extras.openai.generation.tool_choice import DemandedCall
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.fronts.http.submission import InferSubmission

# Models whose tokenizers are kept in the form that schemas need.
_MAX_GRAMMARS: Final = 16
# Sequences of one call at a time, as many as an instance of an export has.
_MAX_SEQUENCES: Final = 16


class Order(NamedTuple):
    """Prompts of a call, and the texts to generate for each."""

    prompts: Sequence[Prompt]
    sampling: Sampling
    texts_each: int = 1
    # False: texts have no calls of tools, or are calls as a whole.
    has_tools: bool = False
    demanded_call: DemandedCall | None = None
    max_calls: int = 128
    # The parameter that has the prompts, and the one that limits tokens, for errors.
    prompt_parameter: str = "messages"
    limit_parameter: str = "max_tokens"


class Usage(NamedTuple):
    """Number of tokens of a call."""

    prompt_tokens: int
    completion_tokens: int


class Generator:
    """Generates texts for the calls of one gateway."""

    def __init__(self, services: TextServices, submission: InferSubmission) -> None:
        self._services = services
        self._submission = submission
        self._responses = ResponseReader()
        self._grammars = BoundedCache[bytes, Grammars](_MAX_GRAMMARS)

    async def chat_prompt(
        self,
        call: TextCall,
        model: TextModel,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
    ) -> Prompt:
        """Return the prompt that the model's chat template makes of messages.

        variables: further ones of the template. Raises InvalidParameter without a template.
        """
        text = await call.chat_text(model, messages, tools, variables)
        return await self.text_prompt(call, model, text, special=False)

    async def text_prompt(
        self, call: TextCall, model: TextModel, text: str, *, special: bool = True
    ) -> Prompt:
        """Return a prompt of text. special: whether the tokenizer adds its special tokens."""
        if not model.has_tokenizer:
            return Prompt(text, None, 0)
        tokenizer = await call.tokenizer(model)
        limit = TokenLimit(0)

        def tokenize() -> Tokens:
            return tokenizer.tokenize([text], limit, special=special)[0]

        ids = (await call.run(len(text), tokenize)).ids
        if not ids and not model.takes_text:
            raise InvalidParameter("prompt", "the prompt has no tokens.")
        return Prompt(text, None if model.takes_text else tuple(ids), len(ids))

    async def token_prompt(self, call: TextCall, model: TextModel, ids: list[int]) -> Prompt:
        """Return a prompt of token ids."""
        if not model.has_tokenizer:
            raise InvalidParameter(
                "prompt", f"The model '{model.name}' takes texts, not token ids."
            )
        tokenizer = await call.tokenizer(model)
        tokenizer.check_ids(ids, TokenLimit(0, parameter="prompt"), 0)
        text = await call.run(len(ids), lambda: tokenizer.decode(ids, skip_special=False))
        return Prompt(text, None if model.takes_text else tuple(ids), len(ids))

    async def run(
        self, call: TextCall, model: TextModel, order: Order, listener: Listener
    ) -> list[Choice]:
        """Return the texts, which the listener gets part by part. Raises NereidError."""
        order = _checked(model, order)
        if order.has_tools and not model.generation.tool_parser:
            raise not_taken("tools")
        if model.has_tokenizer:
            await call.tokenizer(model)
        call.call.free_body()
        if model.gives_logits:
            return await self._sample(call, model, order, listener)
        return await self._stream(call, model, order, listener)

    async def complete(
        self, call: TextCall, model: TextModel, order: Order
    ) -> tuple[list[Choice], Usage]:
        """Return the texts of a call without a stream, and their usage. Raises NereidError."""
        choices = await self.run(call, model, order, SilentListener())
        return choices, await self.usage(call, model, order, choices)

    async def usage(
        self, call: TextCall, model: TextModel, order: Order, choices: Sequence[Choice]
    ) -> Usage:
        """Return the number of tokens: the model's own, or the tokenizer's."""
        prompt_tokens = sum(
            choices[index * order.texts_each].prompt_tokens or prompt.tokens
            for index, prompt in enumerate(order.prompts)
        )
        completion_tokens = 0
        counts_exactly = not model.takes_text or "completion_tokens" in model.generation.outputs
        for choice in choices:
            if counts_exactly or not model.has_tokenizer:
                completion_tokens += choice.tokens
            elif text := "".join(choice.written):
                prompt = await self.text_prompt(call, model, text, special=False)
                completion_tokens += prompt.tokens
        call.tokens, call.output_tokens = prompt_tokens, completion_tokens
        call.begun_s = min((choice.begun_s for choice in choices if choice.begun_s), default=0.0)
        return Usage(prompt_tokens, completion_tokens)

    async def _stream(
        self, call: TextCall, model: TextModel, order: Order, listener: Listener
    ) -> list[Choice]:
        sampling = order.sampling
        if sampling.schema is not None and not model.generation.takes_schema:
            raise not_taken(_schema_parameter(order))
        if sampling.logprobs is not None and "logprobs" not in model.generation.outputs:
            raise not_taken("logprobs")
        if sampling.bias and "sampling_parameters" not in model.generation.inputs:
            raise not_taken("logit_bias")
        limits = _limits(model, order)
        texts: list[tuple[ClientRequest, Choice, DeltaReader]] = []
        for prompt in order.prompts:
            for number in range(order.texts_each):
                request = build_request(model, prompt, sampling, number)
                request.priority = call.priority
                reader = self._reader(model, order)
                choice = Choice(len(texts), limits, listener, reader.flush)
                texts.append((request, choice, reader))
        await ChoiceStreams(self._submission, call.call).run(texts)
        return [choice for _, choice, _ in texts]

    async def _sample(
        self, call: TextCall, model: TextModel, order: Order, listener: Listener
    ) -> list[Choice]:
        limits = _limits(model, order)._replace(counts_tokens=True)
        sampling = order.sampling
        grammars = None
        if sampling.schema is not None:
            parameter = _schema_parameter(order)
            grammars = await self._grammars_of(call, model, parameter)
        flowing = asyncio.Event()
        flowing.set()

        def set_flow(paused: bool) -> None:
            if paused:
                flowing.clear()
            else:
                flowing.set()

        call.call.on_flow_control = set_flow
        choices: list[Choice] = []
        texts = []
        for prompt in order.prompts:
            for number in range(order.texts_each):
                mask = None
                if grammars is not None:
                    schema = sampling.schema or {}
                    mask = await call.in_thread(0, partial(grammars.make_mask, schema, parameter))
                reader = self._reader(model, order)
                choice = Choice(len(choices), limits, listener, reader.flush)
                choices.append(choice)
                text = LogitsText(call, model, self._services.outputs, flowing)
                sampler = Sampler(sampling, number, mask, model.eos_ids())
                texts.append(partial(text.run, prompt.ids or (), choice, reader, sampler))
        most = _MAX_SEQUENCES if model.mapping.keeps_tokens else len(texts)
        slots = asyncio.Semaphore(most)

        async def run_in_slot(run: Callable[[], Awaitable[None]]) -> None:
            async with slots:
                await run()

        tasks = [asyncio.ensure_future(run_in_slot(run)) for run in texts]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return choices

    async def _grammars_of(self, call: TextCall, model: TextModel, parameter: str) -> Grammars:
        known = self._grammars.get(model.digest)
        if known is None:
            made = await call.in_thread(model.size_bytes, partial(Grammars, model, parameter))
            known = self._grammars.remember(model.digest, made)
        return known

    def _reader(self, model: TextModel, order: Order) -> DeltaReader:
        # Marks of calls are special tokens of some models.
        return DeltaReader(
            self._responses,
            model,
            keeps_special=order.has_tools,
            ignores_eos=bool(order.sampling.values.get("ignore_eos")),
        )


def _schema_parameter(order: Order) -> str:
    """Return the name of the parameter that a call's schema comes from."""
    return "tool_choice" if order.demanded_call is not None else "response_format"


def _limits(model: TextModel, order: Order) -> ChoiceLimits:
    generation = model.generation
    sampling = order.sampling
    return ChoiceLimits(
        sampling.stop,
        sampling.max_tokens,
        counts_tokens=not generation.takes("max_tokens"),
        tool_parser=generation.tool_parser if order.has_tools else "",
        demanded_tool=None if order.demanded_call is None else order.demanded_call.tool,
        max_calls=order.max_calls,
    )


def _checked(model: TextModel, order: Order) -> Order:
    """Return an order with values and limits that fit the model. Raises InvalidParameter."""
    sampling = order.sampling
    if order.demanded_call is not None:
        sampling = sampling._replace(schema=order.demanded_call.schema)
    values = fitting_values(sampling.values, model.generation, samples_here=model.gives_logits)
    if model.gives_logits and 0 < model.output_size <= max(sampling.bias or (0,)):
        raise InvalidParameter(
            "logit_bias",
            f"Invalid value for 'logit_bias': token id {max(sampling.bias or ())} is not below the"
            f" {model.output_size} logits of the model.",
            "invalid_value",
        )
    most = model.mapping.max_tokens
    longest = max((prompt.tokens for prompt in order.prompts), default=0)
    if most and longest + max(sampling.max_tokens, 1) > most:
        raise _too_long(most, longest, order)
    max_tokens = sampling.max_tokens or model.generation.max_tokens
    if most:
        max_tokens = min(max_tokens or most, most - longest)
    if 0 < max_tokens < (values.get("min_tokens") or 0):
        raise InvalidParameter(
            "min_tokens", f"'min_tokens' is more than the {max_tokens} tokens that may come."
        )
    return order._replace(sampling=sampling._replace(values=values, max_tokens=max_tokens))


def _too_long(most: int, longest: int, order: Order) -> InvalidParameter:
    asked = order.sampling.max_tokens
    is_prompt = longest >= most
    return InvalidParameter(
        order.prompt_parameter if is_prompt else order.limit_parameter,
        f"This model's maximum context length is {most} tokens. However, you requested"
        f" {longest + asked} tokens ({longest} in '{order.prompt_parameter}', {asked} in the"
        " completion). Please reduce the length of one of them.",
        "context_length_exceeded",
    )
