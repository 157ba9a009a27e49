"""Parts of texts in the responses of models."""

from __future__ import annotations

import codecs
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Internal
from nereid.core.tensors.byte_elements import split_bytes
from nereid.core.tensors.datatypes import BYTES
from nereid.core.tensors.tensors import from_raw
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.extras.openai.texts.text_models import TextModel

_MAX_HEADS: Final = 2048


class TokenLogprob(NamedTuple):
    """A token with its logarithm of probability, and the likeliest tokens in its place."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class Delta(NamedTuple):
    """Addition of one response to a text."""

    text: str
    # Number of tokens, or of texts if the model counts none.
    tokens: int
    # "" if the model says none.
    finish_reason: str = ""
    # 0 if the model counts none.
    prompt_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    # True behind a token that ends the text.
    ends: bool = False


_Place = tuple[int, str, tuple[int, ...]]


class ResponseReader:
    """Finds outputs in responses."""

    def __init__(self) -> None:
        self._places = BoundedCache[bytes, dict[str, _Place]](_MAX_HEADS)

    def places(self, head: bytes) -> dict[str, _Place]:
        """Return position, datatype and shape of each output that a head describes."""
        known = self._places.get(head)
        if known is not None:
            return known
        message = kserve_pb2.ModelInferResponse.FromString(head)
        places = {
            output.name: (index, output.datatype, tuple(output.shape))
            for index, output in enumerate(message.outputs)
        }
        return self._places.remember(head, places)

    def text(self, response: InferResponse, name: str) -> str:
        """Return the text in an output. Raises Internal if the response lacks it."""
        place = self.places(response.head).get(name)
        if place is None or place[1] != BYTES:
            raise Internal(f"the model's response lacks the text output '{name}'")
        payload: Any = response.payloads[place[0]]
        return b"".join(split_bytes(payload)).decode(errors="replace")


class DeltaReader:
    """Reads the responses for one text."""

    def __init__(
        self,
        reader: ResponseReader,
        model: TextModel,
        *,
        keeps_special: bool = False,
        ignores_eos: bool = False,
    ) -> None:
        """Read responses of a model.

        keeps_special: special tokens are part of the text. ignores_eos: no token ends it.
        """
        self._reader = reader
        self._output = model.mapping.output
        self._eos_ids = frozenset() if ignores_eos else model.eos_ids()
        generation = model.generation
        self._outputs = generation.outputs
        # Characters may be split between responses.
        self._decode_bytes = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._decode_ids: Callable[[int], str | None] | None = None
        # Tokens whose characters are not complete.
        self._incomplete: list[int] = []
        if model.mapping.ids is not None:
            tokenizer = model.tokenizer()
            self._decode_ids = tokenizer.decode_stream(skip_special=not keeps_special)
            self._decode_rest = partial(tokenizer.decode, skip_special=True)

    def read(self, response: InferResponse) -> Delta:
        """Return what a response adds. Raises Internal if it lacks the output."""
        places = self._reader.places(response.head)
        place = places.get(self._output)
        if place is None:
            raise Internal(f"the model's response lacks the output '{self._output}'")
        payload: Any = response.payloads[place[0]]
        if self._decode_ids is not None:
            return self.read_ids(from_raw(payload, place[1], place[2]).reshape(-1).tolist())
        if place[1] != BYTES:
            raise Internal(f"output '{self._output}' has the type {place[1]}, not text")
        text = self._decode_bytes(b"".join(split_bytes(payload)))
        delta = Delta(text, 1 if text else 0)
        return self._with_details(response, places, delta) if self._outputs else delta

    def read_ids(self, ids: list[int]) -> Delta:
        """Return what token ids add."""
        assert self._decode_ids is not None, "the model gives no token ids"
        texts: list[str] = []
        for count, token in enumerate(ids):
            if token in self._eos_ids:
                return Delta("".join(texts), count + 1, "stop", ends=True)
            text = self._decode_ids(token)
            if text is None:
                self._incomplete.append(token)
            else:
                self._incomplete.clear()
                texts.append(text)
        return Delta("".join(texts), len(ids))

    def flush(self) -> str:
        """Return what stands for the bytes of a character that the text ends within."""
        if self._incomplete:
            return self._decode_rest(self._incomplete)
        return self._decode_bytes(b"", final=True)

    def _with_details(
        self, response: InferResponse, places: dict[str, _Place], delta: Delta
    ) -> Delta:
        values: dict[str, list[Any]] = {}
        for role, name in self._outputs.items():
            place = places.get(name)
            if place is not None:
                payload: Any = response.payloads[place[0]]
                if place[1] == BYTES:
                    values[role] = [
                        each.decode("utf-8", "replace") for each in split_bytes(payload)
                    ]
                else:
                    values[role] = from_raw(payload, place[1], place[2]).reshape(-1).tolist()
        reasons = [reason for reason in values.get("finish_reason", ()) if reason not in _NO_REASON]
        tokens = values.get("completion_tokens")
        return delta._replace(
            tokens=delta.tokens if tokens is None else int(sum(tokens)),
            finish_reason=reasons[-1] if reasons else "",
            prompt_tokens=int(sum(values.get("prompt_tokens", ()))),
            logprobs=_logprobs(values.get("logprobs", []), delta.text),
        )


# vLLM's backend writes None as text while a text goes on.
_NO_REASON: Final = frozenset({"", "None", "null"})


def _logprobs(values: list[Any], text: str) -> tuple[TokenLogprob, ...]:
    """Return the logprobs of a response: numbers, or vLLM's JSON objects."""
    if not values or not isinstance(values[0], str):
        if len(values) == 1 and text:
            return (TokenLogprob(text, float(values[0])),)
        return ()
    found = []
    for written in values:
        try:
            positions = orjson.loads(written)
        except orjson.JSONDecodeError:
            continue
        for alternatives in positions if isinstance(positions, list) else ():
            if isinstance(alternatives, dict) and alternatives:
                # The sampled token comes first.
                pairs = tuple(
                    (str(each.get("decoded_token") or ""), float(each.get("logprob") or 0.0))
                    for each in alternatives.values()
                )
                top = sorted(pairs, key=lambda pair: -pair[1])
                found.append(TokenLogprob(*pairs[0], tuple(top)))
    return tuple(found)
