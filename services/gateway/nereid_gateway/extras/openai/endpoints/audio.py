"""OpenAI's /v1/audio/transcriptions: texts of files with speech."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Literal

import orjson

from nereid.text.mapping import TRANSCRIBE
from nereid_gateway.extras.openai.bodies import Body, convert
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.forms import parse_form
from nereid_gateway.extras.openai.generation.deltas import ResponseReader
from nereid_gateway.extras.openai.generation.sampling import not_taken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.server.call import HttpCall


class TranscriptionFields(Body, kw_only=True):
    """Fields of a form beside its file."""

    model: str
    response_format: Literal["json"] = "json"
    stream: Literal["true", "false"] = "false"
    temperature: str = "0"
    # No model here takes these.
    language: str = ""
    prompt: str = ""

    def check(self) -> None:
        """Raise InvalidParameter for what no model takes."""
        if self.stream == "true":
            raise not_taken("stream")
        if self.temperature not in {"0", "0.0"}:
            raise not_taken("temperature")
        for name in ("language", "prompt"):
            if getattr(self, name):
                raise not_taken(name)


class OpenAiAudio:
    """Handler of the route of transcriptions."""

    def __init__(self, services: TextServices) -> None:
        self._serve = services.serve
        self._responses = ResponseReader()

    async def transcribe(self, call: HttpCall, _route: Route) -> None:
        """Respond with the text of a file."""
        await self._serve(call, "transcribe", self._transcribe)

    async def _transcribe(self, call: TextCall) -> Sequence[bytes]:
        content = await call.read_content()
        content_type = call.call.headers.get(b"content-type", b"")
        form = await call.run(len(content), lambda: parse_form(content_type, content))
        file = form.pop("file", None)
        if not file:
            raise InvalidParameter(
                "file", "Missing required parameter: 'file'.", "missing_required_parameter"
            )
        fields = {name: value.decode(errors="replace") for name, value in form.items()}
        body = convert(fields, TranscriptionFields, "")
        body.check()

        async def work(model: TextModel) -> str:
            row = model.content_row(file)
            call.hold_rows([row], monotonic_ns())
            (text,) = await call.infer([row], lambda response, _: self._text(model, response))
            return text

        text = await call.with_model(body.model, (TRANSCRIBE,), work)
        return (orjson.dumps({"text": text}),)

    def _text(self, model: TextModel, response: InferResponse) -> str:
        return self._responses.text(response, model.mapping.output)
