"""Texts of models that give logits: the gateway samples each token, and sends it to the model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from nereid.core.errors import Internal
from nereid_gateway.extras.openai.generation.choices import LENGTH
from nereid_gateway.extras.openai.generation.deltas import Delta, TokenLogprob
from nereid_gateway.extras.openai.generation.token_steps import TokenSteps

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.extras.openai.calls import TextCall
    from nereid_gateway.extras.openai.generation.choices import Choice
    from nereid_gateway.extras.openai.generation.deltas import DeltaReader
    from nereid_gateway.extras.openai.generation.grammars import TokenMask
    from nereid_gateway.extras.openai.generation.sampling import Sampling
    from nereid_gateway.extras.openai.texts.outputs import OutputReader
    from nereid_gateway.extras.openai.texts.rows import Row
    from nereid_gateway.extras.openai.texts.text_models import TextModel

    Logits = NDArray[np.float32]

# Tokens that sampling looks at if the request says nothing: the tail has no weight in practice.
_MAX_CANDIDATES: Final = 1024
_MIN_TEMPERATURE: Final = 1e-4


class Sampled(NamedTuple):
    """A sampled token."""

    token: int
    # None if the request asks for none.
    logprob: float | None = None
    # Likeliest tokens with their logprobs.
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Samples the tokens of one text. The same seed gives the same text for the same logits."""

    def __init__(
        self,
        sampling: Sampling,
        index: int,
        mask: TokenMask | None = None,
        eos_ids: Collection[int] = (),
    ) -> None:
        """Sample by the parameters of a call.

        index: the text's number; mask: tokens allowed; eos_ids: tokens that end a text.
        """
        values: Mapping[str, Any] = sampling.values
        seed = values.get("seed")
        self._random = np.random.default_rng(None if seed is None else [seed & (2**64 - 1), index])
        self._temperature: float = values.get("temperature", 1.0)
        self._top_p: float = values.get("top_p", 1.0)
        self._min_p: float = values.get("min_p", 0.0)
        self._top_k: int = values.get("top_k", 0)
        self._penalties = (
            values.get("repetition_penalty", 1.0),
            values.get("frequency_penalty", 0.0),
            values.get("presence_penalty", 0.0),
        )
        self._bias = sampling.bias or {}
        self._logprobs = sampling.logprobs
        self._mask = mask
        self._min_tokens: int = values.get("min_tokens", 0)
        self._eos_ids = eos_ids

    def sample(self, logits: Logits, prompt: Sequence[int], generated: Sequence[int]) -> Sampled:
        """Return the next token. logits: a copy that may be changed, one for each token."""
        self._penalize(logits, prompt, generated)
        for token, bias in self._bias.items():
            if 0 <= token < len(logits):
                logits[token] += bias
        if self._mask is not None:
            # It alone decides where the text may end.
            self._mask.apply(logits)
        elif len(generated) < self._min_tokens:
            logits[[token for token in self._eos_ids if token < len(logits)]] = -np.inf
        token = self._choose(logits)
        if self._logprobs is None:
            return Sampled(token)
        logprobs = logits - logits.max()
        logprobs -= np.log(np.exp(logprobs).sum())
        top = tuple((each, float(logprobs[each])) for each in _largest(logits, self._logprobs))
        return Sampled(token, float(logprobs[token]), top)

    def complete(self, token: int) -> bool:
        """Note the next token. Return whether the mask allows nothing more."""
        return self._mask is not None and self._mask.add(token)

    def _penalize(self, logits: Logits, prompt: Sequence[int], generated: Sequence[int]) -> None:
        repetition, frequency, presence = self._penalties
        if repetition != 1.0:
            seen = np.unique(np.array([*prompt, *generated], np.int64))
            values = logits[seen]
            logits[seen] = np.where(values > 0, values / repetition, values * repetition)
        if (frequency or presence) and generated:
            tokens, counts = np.unique(np.array(generated, np.int64), return_counts=True)
            logits[tokens] -= (frequency * counts + presence).astype(np.float32)

    def _choose(self, logits: Logits) -> int:
        if self._temperature < _MIN_TEMPERATURE or self._top_k == 1:
            return int(logits.argmax())
        top_k = self._top_k if self._top_k > 0 else _MAX_CANDIDATES
        candidates = np.array(_largest(logits, top_k))
        scaled = logits[candidates].astype(np.float64) / self._temperature
        shares = np.exp(scaled - scaled[0])
        shares /= shares.sum()
        if self._top_p < 1.0:
            # The token that crosses the limit belongs to the set.
            count = int(np.searchsorted(np.cumsum(shares), self._top_p)) + 1
            candidates, shares = candidates[:count], shares[:count]
        if self._min_p > 0.0:
            kept = shares >= self._min_p * shares[0]
            candidates, shares = candidates[kept], shares[kept]
        return int(self._random.choice(candidates, p=shares / shares.sum()))


def _largest(logits: Logits, count: int) -> list[int]:
    """Return the indexes of the largest logits, the largest first."""
    count = min(count, len(logits))
    if not count:
        return []
    largest = np.argpartition(logits, -count)[-count:]
    order: list[int] = largest[np.argsort(-logits[largest], kind="stable")].tolist()
    return order


def _last_logits(array: NDArray[Any], count: int) -> Logits:
    """Return the logits behind the last of `count` tokens, as a copy."""
    if array.ndim == 3:
        array = array[0]
    if array.ndim == 2:
        array = array[min(count, len(array)) - 1]
    if array.ndim != 1:
        raise Internal(f"the model's logits have the shape {list(array.shape)}")
    return np.array(array, np.float32)


class LogitsText:
    """One text, made by a request for each of its tokens."""

    def __init__(
        self, call: TextCall, model: TextModel, outputs: OutputReader, flowing: asyncio.Event
    ) -> None:
        """Make a text. flowing: set while the client reads what it gets."""
        self._call = call
        self._model = model
        self._outputs = outputs
        self._flowing = flowing

    async def run(
        self, prompt: Sequence[int], choice: Choice, reader: DeltaReader, sampler: Sampler
    ) -> None:
        """Add token after token to a choice until it ends."""
        model = self._model
        most = model.mapping.fixed_tokens or model.mapping.max_tokens
        tokens = list(prompt)
        steps = TokenSteps(self._call, model)
        try:
            while not choice.finish_reason:
                if most and len(tokens) >= most:
                    choice.add(Delta("", 0, LENGTH))
                    choice.end()
                    return
                await self._flowing.wait()
                sample = partial(self._sample, sampler, prompt, tokens[len(prompt) :])
                sampled = await steps.infer(tokens, sample, is_last=choice.lacks_one_token)
                tokens.append(sampled.token)
                delta = reader.read_ids([sampled.token])
                if not delta.ends:
                    delta = delta._replace(
                        logprobs=_with_texts(sampled, model), ends=sampler.complete(sampled.token)
                    )
                choice.add(delta)
        finally:
            steps.end()

    def _sample(
        self,
        sampler: Sampler,
        prompt: Sequence[int],
        generated: Sequence[int],
        response: InferResponse,
        row: Row,
    ) -> Sampled:
        array = self._outputs.read(response, self._model.mapping.output)
        return sampler.sample(_last_logits(array, row.tokens), prompt, generated)


def _with_texts(sampled: Sampled, model: TextModel) -> tuple[TokenLogprob, ...]:
    if sampled.logprob is None:
        return ()
    text = model.tokenizer().text_of
    top = tuple((text(token), logprob) for token, logprob in sampled.top)
    return (TokenLogprob(text(sampled.token), sampled.logprob, top),)
