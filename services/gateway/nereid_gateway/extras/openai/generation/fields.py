"""Fields of bodies that all APIs of generation share."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from nereid_gateway.extras.openai.bodies import Body
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.generation.sampling import Sampling, check_stop, not_taken

_MAX_STOPS: Final = 4
_MAX_BIASES: Final = 1024
# Texts of one call.
MAX_TEXTS: Final = 128

Temperature = Annotated[float, Meta(ge=0, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]


class SamplingFields(Body, kw_only=True):
    """Parameters of sampling, those of vLLM included."""

    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 20)] | None = None
    min_p: Share | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: str | list[str] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] | None = None
    ignore_eos: bool | None = None

    def sampling(self) -> Sampling:
        """Return the parameters; raise InvalidParameter."""
        values = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "repetition_penalty": self.repetition_penalty,
            "min_tokens": self.min_tokens,
            "ignore_eos": self.ignore_eos,
        }
        stop = check_stop(self.stop, "stop", _MAX_STOPS)
        return Sampling(values, stop, bias=_biases(self.logit_bias))


class StreamOptions(Body, kw_only=True):
    """Options of streams."""

    include_usage: bool = False
    # Accepted without effect: it pads events against eavesdroppers who count bytes.
    include_obfuscation: bool = False


class CompletionFields(SamplingFields, kw_only=True):
    """Fields that completions and chat completions share."""

    model: str
    n: Annotated[int, Meta(ge=1, le=MAX_TEXTS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int = 0
    # Accepted without effect.
    user: str | None = None

    @property
    def includes_usage(self) -> bool:
        """True if the stream ends with the number of tokens. Raises InvalidParameter."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise InvalidParameter(
                "stream_options",
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
                "invalid_value",
            )
        return self.stream_options.include_usage


class Format(Body, kw_only=True):
    """Form of the text: any, JSON, or JSON by a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def schema(self) -> dict[str, Any] | None:
        """Return the schema, an empty one for any object; None for text."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return {}
        if self.json_schema is None or self.json_schema.schema is None:
            raise InvalidParameter(
                "response_format.json_schema",
                "Missing required parameter: 'response_format.json_schema.schema'.",
                "missing_required_parameter",
            )
        return self.json_schema.schema


class JsonSchema(Body, kw_only=True):
    """A schema with a name."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


def _biases(written: dict[str, float] | None) -> dict[int, float] | None:
    if not written:
        return None
    if len(written) > _MAX_BIASES or not all(key.isdecimal() and len(key) < 10 for key in written):
        raise InvalidParameter(
            "logit_bias",
            f"Invalid value for 'logit_bias': expected up to {_MAX_BIASES} token ids as keys.",
            "invalid_value",
        )
    return {int(token): bias for token, bias in written.items()}


def refuse(parameter: str, given: object) -> None:
    """Raise InvalidParameter if a parameter that no model takes has a value."""
    if given is not None and given is not False and given != []:
        raise not_taken(parameter)
