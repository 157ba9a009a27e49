"""Requests for the tokens of one text: the whole text each time, or what its sequence lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

from nereid.core.errors import InvalidArgument, Unavailable
from nereid_gateway.extras.openai.texts.text_models import TokenStep
from nereid_gateway.extras.openai.texts.tokenizer import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.extras.openai.calls import TextCall
    from nereid_gateway.extras.openai.texts.rows import Row
    from nereid_gateway.extras.openai.texts.text_models import TextModel

Output = TypeVar("Output")

_MAX_TOKENS: Final = 1 << 20
_MAX_LOGITS_BYTES: Final = 32 << 20
_LOGIT_BYTES: Final = 4


class TokenSteps:
    """Requests of one text, one after the other.

    A model that keeps tokens has a sequence for the text. If it is lost, because its executor or
    its time is over, another one begins with all tokens so far.
    """

    def __init__(self, call: TextCall, model: TextModel) -> None:
        self._call = call
        self._model = model
        # Sequence, and the number of its tokens; empty and 0 before it begins, and after it ends.
        self._id = ""
        self._kept = 0
        # Most tokens of a request. Their logits come with the response, though only the last count.
        self._most = _MAX_TOKENS
        if model.mapping.logits_to_keep is None:
            self._most = max(1, _MAX_LOGITS_BYTES // (_LOGIT_BYTES * max(1, model.output_size)))

    async def infer(
        self,
        tokens: Sequence[int],
        read: Callable[[InferResponse, Row], Output],
        *,
        is_last: bool,
    ) -> Output:
        """Return what `read` makes of the response behind a text's tokens so far.

        is_last: whether no further tokens follow.
        """
        if not self._model.mapping.keeps_tokens:
            (output,) = await self._call.infer([self._model.token_row(Tokens(tokens))], read)
            return output
        if self._kept:
            try:
                return await self._step(tokens, read, is_last=is_last)
            except (InvalidArgument, Unavailable) as error:
                if not error.accepted and isinstance(error, Unavailable):
                    # The queue is full.
                    raise
        self._id, self._kept = uuid4().hex, 0
        while len(tokens) - self._kept > self._most:
            part = tokens[: self._kept + self._most]
            await self._step(part, _ignore, is_last=False)
        return await self._step(tokens, read, is_last=is_last)

    def end(self) -> None:
        """End the sequence if it has not ended, so that others get its slot."""
        if self._id:
            # Its first request may be in flight, and this one must not begin it anew.
            step = TokenStep(self._id, max(self._kept, 1), ends=True)
            self._call.end_sequence(self._model.token_row(Tokens((0,)), step=step))
            self._id, self._kept = "", 0

    async def _step(
        self,
        tokens: Sequence[int],
        read: Callable[[InferResponse, Row], Output],
        *,
        is_last: bool,
    ) -> Output:
        step = TokenStep(self._id, self._kept, is_last)
        row = self._model.token_row(Tokens(tokens[self._kept :]), step=step)
        (output,) = await self._call.infer([row], read)
        self._kept = len(tokens)
        if is_last:
            self._id, self._kept = "", 0
        return output


def _ignore(_response: InferResponse, _row: Row) -> None:
    """Ignore the logits within a prompt."""
