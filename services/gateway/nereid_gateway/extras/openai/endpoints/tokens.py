"""Tokens of texts and back: vLLM's tokenize and detokenize, TEI's tokenize and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from nereid.text.mapping import CLASSIFY, DECIDE, EMBED, EMBED_SPARSE, GENERATE, RANK
from nereid_gateway.extras.openai.bodies import Body, missing, texts_of
from nereid_gateway.extras.openai.endpoints.chat import Tool, functions_of
from nereid_gateway.extras.openai.endpoints.text_fields import (
    OF_MESSAGES,
    named_prompt,
    refuse_fields,
    text_of_messages,
)
from nereid_gateway.extras.openai.errors import InvalidParameter, tei_error
from nereid_gateway.extras.openai.generation.messages import Message, template_tools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.server.call import HttpCall

_ALL: Final = (CLASSIFY, DECIDE, EMBED, EMBED_SPARSE, GENERATE, RANK)
_TEXTS: Final = ("prompt", "messages", "inputs")


class TokenizeBody(Body, kw_only=True):
    """Body of /tokenize: vLLM's has `prompt` or `messages`, TEI's `inputs`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    inputs: str | list[str] | None = None
    # None: special tokens are added to texts, but not to what the template writes.
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    # Messages have these.
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    # TEI's.
    prompt_name: str | None = None


class DetokenizeBody(Body, kw_only=True):
    """Body of vLLM's /detokenize."""

    tokens: list[int]
    model: str | None = None


class DecodeBody(Body, kw_only=True):
    """Body of TEI's /decode."""

    ids: list[int | list[int]]
    model: str | None = None
    skip_special_tokens: bool = True


class OpenAiTokens:
    """Handlers of the routes of tokenizers."""

    def __init__(self, services: TextServices) -> None:
        self._serve = services.serve

    async def tokenize(self, call: HttpCall, _route: Route) -> None:
        """Respond with the tokens of a text."""
        await self._serve(call, "tokenize", self._tokenize)

    async def detokenize(self, call: HttpCall, _route: Route) -> None:
        """Respond with the text of tokens."""
        await self._serve(call, "detokenize", self._detokenize)

    async def decode(self, call: HttpCall, _route: Route) -> None:
        """Respond with the texts of lists of tokens."""
        await self._serve(call, "detokenize", self._decode)

    async def _tokenize(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(TokenizeBody)
        given = [name for name in _TEXTS if getattr(body, name) is not None]
        if not given:
            raise missing("prompt")
        if len(given) > 1:
            listed = " and ".join(map(repr, given))
            raise InvalidParameter(given[1], f"{listed} exclude each other.")
        if body.messages is None:
            refuse_fields(body, (*OF_MESSAGES, "tools"), "messages")
        elif body.add_generation_prompt is None:
            body.add_generation_prompt = not body.continue_final_message
        if body.inputs is None:
            refuse_fields(body, ("prompt_name",), "inputs")
        else:
            refuse_fields(body, ("return_token_strs",), "prompt")
            call.call.encode_error = tei_error
            return await self._tokenize_inputs(call, body, texts_of(body.inputs, "inputs"))

        async def work(model: TextModel) -> dict[str, Any]:
            text, special = body.prompt, True
            if text is None:
                functions = template_tools(functions_of(body.tools), "tools")
                messages = body.messages or []
                text = await text_of_messages(call, model, body, messages, functions)
                special = False
            if body.add_special_tokens is not None:
                special = body.add_special_tokens
            tokenizer = await call.tokenizer(model)
            encoding = await call.run(
                len(text), lambda: tokenizer.encode_with_offsets(text, special=special)
            )
            call.tokens = len(encoding)
            return {
                "count": len(encoding),
                "max_model_len": model.mapping.max_tokens or None,
                "tokens": encoding.ids,
                "token_strs": encoding.tokens if body.return_token_strs else None,
            }

        return (orjson.dumps(await call.with_model(body.model, _ALL, work)),)

    async def _tokenize_inputs(
        self, call: TextCall, body: TokenizeBody, texts: list[str]
    ) -> Sequence[bytes]:
        async def work(model: TextModel) -> list[list[dict[str, Any]]]:
            tokenizer = await call.tokenizer(model)
            special_ids = tokenizer.special_ids()
            special = body.add_special_tokens is not False
            prompt = "" if body.prompt_name is None else named_prompt(model, body.prompt_name)

            def tokens_of(text: str) -> list[dict[str, Any]]:
                text = prompt + text
                encoding = tokenizer.encode_with_offsets(text, special=special)
                return [
                    {
                        "id": number,
                        "text": text[start:stop] if start < stop else token,
                        "special": number in special_ids,
                        "start": start if start < stop else None,
                        "stop": stop if start < stop else None,
                    }
                    for number, token, (start, stop) in zip(
                        encoding.ids, encoding.tokens, encoding.offsets, strict=True
                    )
                ]

            documents = [
                await call.run(len(text), lambda text=text: tokens_of(text))  # type: ignore[misc]
                for text in texts
            ]
            call.tokens = sum(map(len, documents))
            return documents

        return (orjson.dumps(await call.with_model(body.model, _ALL, work)),)

    async def _detokenize(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(DetokenizeBody)
        (text,) = await self._texts(call, body.model, [body.tokens], skip_special=False)
        return (orjson.dumps({"prompt": text}),)

    async def _decode(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(DecodeBody)
        lists = texts_of(body.ids, "ids")
        texts = await self._texts(call, body.model, lists, skip_special=body.skip_special_tokens)
        return (orjson.dumps(texts),)

    async def _texts(
        self, call: TextCall, name: str | None, lists: list[list[int]], *, skip_special: bool
    ) -> list[str]:
        async def work(model: TextModel) -> list[str]:
            tokenizer = await call.tokenizer(model)
            return await call.run(
                sum(map(len, lists)),
                lambda: [tokenizer.decode(ids, skip_special=skip_special) for ids in lists],
            )

        return await call.with_model(name, _ALL, work)
