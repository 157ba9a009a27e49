"""One generated text: what its client gets of it, and when it ends."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nereid_gateway.extras.openai.generation.markers import MarkerSearch
from nereid_gateway.extras.openai.generation.tool_calls import DemandedCallParser, make_tool_parser

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid_gateway.extras.openai.generation.deltas import Delta, TokenLogprob
    from nereid_gateway.extras.openai.generation.tool_calls import Piece, ToolCall, ToolParser

STOP: Final = "stop"
LENGTH: Final = "length"
# Characters of a text. Models that never end one are stopped here.
_MAX_CHARACTERS: Final = 4 << 20
TOOL_CALLS: Final = "tool_calls"


class Listener(Protocol):
    """Gets the parts of texts as they become known."""

    def on_text(self, choice: Choice, text: str, logprobs: Sequence[TokenLogprob]) -> None:
        """Take the next part of a text."""

    def on_tool_call(self, choice: Choice, call: ToolCall) -> None:
        """Take a call of a tool, the last one of choice.calls."""

    def on_finish(self, choice: Choice) -> None:
        """Take note that a text has ended."""


class SilentListener:
    """Listener for a call whose client gets all texts at the end."""

    def on_text(self, choice: Choice, text: str, logprobs: Sequence[TokenLogprob]) -> None:
        """Do nothing."""

    def on_tool_call(self, choice: Choice, call: ToolCall) -> None:
        """Do nothing."""

    def on_finish(self, choice: Choice) -> None:
        """Do nothing."""


class ChoiceLimits(NamedTuple):
    """Limits of a text, and what is separated from it."""

    stop: tuple[str, ...] = ()
    # Number of tokens. 0: no limit.
    max_tokens: int = 0
    # False if the model itself ends the text after max_tokens.
    counts_tokens: bool = False
    # Name of a tool parser, or "" if texts have no calls of tools.
    tool_parser: str = ""
    # The tool whose arguments the text is, "" if it is a list of calls; None: neither.
    demanded_tool: str | None = None
    max_calls: int = 128


class Choice:
    """A text in the making. Texts of one call have numbers, as OpenAI's choices do."""

    def __init__(
        self, index: int, limits: ChoiceLimits, listener: Listener, flush: Callable[[], str] = str
    ) -> None:
        """Begin a text. flush: returns what an incomplete last character becomes."""
        self.index = index
        self.texts: list[str] = []
        # The text with its calls of tools as they are written.
        self.written: list[str] = []
        self.calls: list[ToolCall] = []
        self.logprobs: list[TokenLogprob] = []
        # As far as known: tokens, or responses with text.
        self.tokens = 0
        self.prompt_tokens = 0
        # Empty until the text has ended.
        self.finish_reason = ""
        # Time of the first token, of monotonic().
        self.begun_s = 0.0
        self._size = 0
        # The text of `stop` that ended it.
        self.stop_text: str | None = None
        self._limits = limits
        self._listener = listener
        self._flush = flush
        self._stops = MarkerSearch(limits.stop) if limits.stop else None
        self._parser: ToolParser | None = None
        if limits.demanded_tool is not None:
            self._parser = DemandedCallParser(limits.demanded_tool)
        elif limits.tool_parser:
            self._parser = make_tool_parser(limits.tool_parser)
        # Logprobs of text that is held back.
        self._waiting_logprobs: list[TokenLogprob] = []
        self._model_reason = ""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)

    @property
    def lacks_one_token(self) -> bool:
        """True if the next token ends the text by its limit of tokens."""
        limits = self._limits
        return limits.counts_tokens and self.tokens + 1 == limits.max_tokens

    def add(self, delta: Delta) -> None:
        """Add what a response or a token adds."""
        if not self.begun_s:
            self.begun_s = monotonic()
        self.tokens += delta.tokens
        self._size += len(delta.text)
        # vLLM's backend repeats the number in each response.
        self.prompt_tokens = max(self.prompt_tokens, delta.prompt_tokens)
        if delta.finish_reason:
            self._model_reason = delta.finish_reason
        if delta.logprobs:
            self._waiting_logprobs += delta.logprobs
        self._add_text(delta.text)
        if self.finish_reason:
            return
        limits = self._limits
        if delta.ends:
            self.end()
        elif self._size > _MAX_CHARACTERS or (
            limits.counts_tokens and 0 < limits.max_tokens <= self.tokens
        ):
            self._model_reason = LENGTH
            self.end()

    def end(self) -> None:
        """End the text, because no more follows."""
        if self.finish_reason:
            return
        self._add_text(self._flush())
        if not self.finish_reason:
            self._finish(self._stops.flush() if self._stops is not None else "")

    def _add_text(self, text: str) -> None:
        if self._stops is not None and text:
            found = self._stops.feed(text)
            if found.marker:
                self.stop_text = found.marker
                self._finish(found.text)
                return
            text = found.text
        self._emit(text)

    def _finish(self, text: str) -> None:
        """Emit the last text, and all that is held back."""
        self._emit(text)
        if self._parser is not None and not self.finish_reason:
            self._emit_pieces(self._parser.flush())
        if self.finish_reason:
            return
        if self._waiting_logprobs:
            self._emit_text("")
        self.finish_reason = self._reason()
        self._listener.on_finish(self)

    def _emit(self, text: str) -> None:
        if not text:
            return
        self.written.append(text)
        if self._parser is None:
            self._emit_text(text)
        else:
            self._emit_pieces(self._parser.feed(text))

    def _emit_pieces(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                # Line breaks after a call belong to no text.
                if piece and not (self.calls and piece.isspace()):
                    self._emit_text(piece)
                continue
            self.calls.append(piece)
            self._listener.on_tool_call(self, piece)
            if len(self.calls) >= self._limits.max_calls:
                self.finish_reason = TOOL_CALLS
                self._listener.on_finish(self)
                return

    def _emit_text(self, text: str) -> None:
        logprobs, self._waiting_logprobs = self._waiting_logprobs, []
        self.texts.append(text)
        self.logprobs += logprobs
        self._listener.on_text(self, text, logprobs)

    def _reason(self) -> str:
        if self.calls:
            return TOOL_CALLS
        if self.stop_text is not None:
            return STOP
        if self._model_reason:
            return LENGTH if self._model_reason == LENGTH else STOP
        return LENGTH if 0 < self._limits.max_tokens <= self.tokens else STOP
