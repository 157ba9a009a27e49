"""Calls of tools in generated texts, in the forms that models were trained to write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from nereid_gateway.extras.openai.generation.markers import MarkerSearch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MISTRAL: Final = "[TOOL_CALLS]"
_MISTRAL_ARGUMENTS: Final = "[ARGS]"
_PYTHON_TAG: Final = "<|python_tag|>"
# A model that writes more between two markers writes no call.
_MAX_CHARACTERS: Final = 1 << 20
_MAX_CALLS: Final = 128


class ToolCall(NamedTuple):
    """Call of a tool. arguments: JSON text of an object."""

    name: str
    arguments: str


Piece = str | ToolCall


class ToolParser(Protocol):
    """Separates calls of tools from the text around them."""

    def feed(self, part: str) -> Sequence[Piece]:
        """Return what the next part of the text makes complete, in its order."""

    def flush(self) -> Sequence[Piece]:
        """Return what is left at the end of the text."""


def make_tool_parser(name: str) -> ToolParser:
    """Return a parser for one text. name: one of nereid.text.generation.TOOL_PARSERS."""
    return _PARSERS[name]()


class DemandedCallParser:
    """Calls where the whole text is one, or a list of them."""

    def __init__(self, tool: str) -> None:
        """Read a text. tool: the one whose arguments it is, or "" for a list of calls."""
        self._tool = tool
        self._held: list[str] = []

    def feed(self, part: str) -> Sequence[Piece]:
        """Hold a part of the text."""
        self._held.append(part)
        return ()

    def flush(self) -> Sequence[Piece]:
        """Return the calls; the text if it was cut."""
        text = "".join(self._held)
        if not self._tool:
            return _read_calls(text) or (text,)
        arguments = _parse(text)
        return (_call(self._tool, arguments) if isinstance(arguments, dict) else text,)


class _HermesParser:
    """Calls in <tool_call> tags, as Hermes and Qwen write them."""

    def __init__(self) -> None:
        self._before = MarkerSearch(("<tool_call>",))
        self._within = MarkerSearch(("</tool_call>",))
        # Text of the call that is not complete, or None outside of a call.
        self._call: list[str] | None = None
        self._size = 0

    def feed(self, part: str) -> Sequence[Piece]:
        pieces: list[Piece] = []
        while True:
            if self._call is None:
                found = self._before.feed(part)
                # Line breaks between calls belong to no text.
                pieces.append(found.text.rstrip() if found.marker else found.text)
                if not found.marker:
                    break
                self._call, self._size = [], 0
            else:
                found = self._within.feed(part)
                self._call.append(found.text)
                self._size += len(found.text)
                if not found.marker:
                    if self._size > _MAX_CHARACTERS:
                        pieces.append(self._end_call())
                    break
                written = "".join(self._call)
                self._call = None
                pieces += _read_calls(written) or [f"<tool_call>{written}</tool_call>"]
            part = found.rest
        return pieces

    def flush(self) -> Sequence[Piece]:
        if self._call is None:
            return (self._before.flush(),)
        self._call.append(self._within.flush())
        # Some models leave the last tag out.
        return _read_calls("".join(self._call)) or (self._end_call(),)

    def _end_call(self) -> str:
        written, self._call = self._call or [], None
        return "<tool_call>" + "".join(written)


class _HeldParser:
    """Calls that extend to the end of the text. Subclasses say where they begin."""

    def __init__(self) -> None:
        self._held: list[str] | None = None
        self._size = 0

    def feed(self, part: str) -> Sequence[Piece]:
        text = ""
        if self._held is None:
            text, part, begins = self.find_begin(part)
            if not begins:
                return (text,)
            self._held = []
        self._held.append(part)
        self._size += len(part)
        if self._size > _MAX_CHARACTERS:
            text += "".join(self._held)
            self._held, self._size = None, 0
        return (text,)

    def flush(self) -> Sequence[Piece]:
        if self._held is None:
            return (self.flush_begin(),)
        held = "".join(self._held)
        return self.read(held) or (held,)

    def find_begin(self, part: str) -> tuple[str, str, bool]:
        """Return the text before calls, the rest, and whether the rest begins a call."""
        raise NotImplementedError

    def flush_begin(self) -> str:
        """Return the text that was held back as a possible beginning."""
        raise NotImplementedError

    def read(self, held: str) -> list[ToolCall]:
        """Return the calls in a text; none if they are malformed."""
        raise NotImplementedError


class _MistralParser(_HeldParser):
    """A list of calls after [TOOL_CALLS], or a name and arguments after each."""

    def __init__(self) -> None:
        super().__init__()
        self._search = MarkerSearch((_MISTRAL,))

    def find_begin(self, part: str) -> tuple[str, str, bool]:
        found = self._search.feed(part)
        return found.text, found.marker + found.rest, bool(found.marker)

    def flush_begin(self) -> str:
        return self._search.flush()

    def read(self, held: str) -> list[ToolCall]:
        calls = []
        for written in filter(str.strip, held.split(_MISTRAL)):
            text = written.strip()
            if text.startswith(("[", "{")):
                calls += _read_calls(text)
                continue
            name, brace, rest = text.replace(_MISTRAL_ARGUMENTS, "").partition("{")
            arguments = _parse(brace + rest)
            if name.strip() and isinstance(arguments, dict):
                calls.append(_call(name.strip(), arguments))
        return calls


class _LlamaParser(_HeldParser):
    """JSON objects as the whole text, as Llama 3 writes them."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = False
        self._blanks = ""

    def find_begin(self, part: str) -> tuple[str, str, bool]:
        if self._begun:
            return part, "", False
        part = self._blanks + part
        text = part.lstrip()
        if not text or (_PYTHON_TAG.startswith(text) and text != _PYTHON_TAG):
            self._blanks = part
            return "", "", False
        self._begun, self._blanks = True, ""
        if text.startswith(("{", _PYTHON_TAG)):
            return "", part, True
        return part, "", False

    def flush_begin(self) -> str:
        return self._blanks

    def read(self, held: str) -> list[ToolCall]:
        text = held.replace(_PYTHON_TAG, "").strip()
        calls = _read_calls(text)
        if calls or ";" not in text:
            return calls
        decoder = json.JSONDecoder()
        position = 0
        values = []
        try:
            while position < len(text):
                value, position = decoder.raw_decode(text, position)
                values.append(value)
                while position < len(text) and text[position] in "; \n\t":
                    position += 1
        except (ValueError, RecursionError):
            return []
        return _as_calls(values)


_PARSERS: Final[dict[str, Callable[[], ToolParser]]] = {
    "hermes": _HermesParser,
    "mistral": _MistralParser,
    "llama3_json": _LlamaParser,
}


def _read_calls(text: str) -> list[ToolCall]:
    value = _parse(text)
    return _as_calls(value if isinstance(value, list) else [value])


def _as_calls(values: list[Any]) -> list[ToolCall]:
    calls = []
    for value in values[:_MAX_CALLS]:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return []
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(arguments, str):
            arguments = _parse(arguments)
        if arguments is not None and not isinstance(arguments, dict):
            return []
        calls.append(_call(value["name"], arguments or {}))
    return calls


def _call(name: str, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
