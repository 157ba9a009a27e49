"""Reads responses of OpenAI's API: the usage in bodies, and streams of server-sent events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nereid_perf.wire.client import PendingRequest

_USAGE: Final = b'"usage"'
_DECODER: Final = json.JSONDecoder()
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_MAX_ERROR_LENGTH: Final = 200


def read_usage(pending: PendingRequest, body: bytes) -> None:
    """Note the tokens that a body says. The rest of it, such as vectors, is not parsed."""
    begin = body.rfind(_USAGE)
    if begin < 0:
        return
    text = body[begin + len(_USAGE) :].decode("utf-8", "replace").lstrip(" \t\r\n:")
    try:
        usage, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return
    _note_usage(pending, usage)


def _note_usage(pending: PendingRequest, usage: Any) -> None:
    if not isinstance(usage, dict):
        return
    # completion_tokens are OpenAI's, output_tokens those of its newer APIs and of Anthropic.
    outputs = _count(usage, "completion_tokens", "output_tokens")
    inputs = _count(usage, "prompt_tokens", "input_tokens")
    # Rankers say only the sum.
    pending.input_tokens = inputs or max(0, _count(usage, "total_tokens") - outputs)
    pending.output_tokens = outputs


def _count(usage: dict[str, Any], *names: str) -> int:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and 0 <= value < 1 << 48:
            return value
    return 0


class TextEvents:
    """The server-sent events of one response. An event with text counts as a response."""

    def __init__(self) -> None:
        # Why the stream is no complete response.
        self.error = "the stream ended without [DONE]"
        self._rest = b""

    def feed(self, pending: PendingRequest, data: bytes, now_ns: int) -> None:
        """Read the next bytes, which arrived at now_ns."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(_DATA):
                self._read_event(pending, line[len(_DATA) :].strip(), now_ns)

    def _read_event(self, pending: PendingRequest, content: bytes, now_ns: int) -> None:
        if content == _DONE:
            if self.error.startswith("the stream"):
                self.error = ""
            return
        try:
            event = json.loads(content)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            self.error = f"no JSON in the stream: {content.decode('utf-8', 'replace')}"
            self.error = self.error[:_MAX_ERROR_LENGTH]
            return
        if event.get("error"):
            self.error = error_text(event["error"])
        _note_usage(pending, event.get("usage"))
        if _has_text(event):
            pending.on_response(now_ns)


def error_text(error: Any) -> str:
    """Return the text of an error in an API's shape: a text, or an object with a message."""
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:_MAX_ERROR_LENGTH]


def _has_text(event: dict[str, Any]) -> bool:
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        found = delta if isinstance(delta, dict) else choice
        if any(found.get(name) for name in ("content", "text", "tool_calls", "reasoning_content")):
            return True
    return False
