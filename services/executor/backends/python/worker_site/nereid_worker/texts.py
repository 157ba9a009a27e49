"""Exceptions of models as texts for clients, in the form that Triton gives them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_OWN = str(Path(__file__).parent)
# What has started this process; nobody's code stands between it and the worker's.
_STARTER = "<frozen runpy>"
_UNAVAILABLE = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"


class Refusal(Exception):
    """What a model gave makes no sense; told without a name and places."""


def error_text(error: BaseException) -> str:
    """The exception, and where it came from, innermost first; without the worker's own frames."""
    # Half a surrogate pair, as file names may have it, is no character.
    return _whole(error).encode("utf-8", "backslashreplace").decode()


def _whole(error: BaseException) -> str:
    try:
        return _told(error, str(error) or "<EMPTY MESSAGE>")
    except Exception as another:
        told = _told(error, _UNAVAILABLE)
        try:
            why = _told(another, str(another))
        except Exception:
            why = _told(another, _UNAVAILABLE)
        return f"{told}\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: {why}"


def _told(error: BaseException, message: str) -> str:
    if isinstance(error, Refusal):
        return message
    told = f"{type(error).__name__}: {message}"
    trace = error.__traceback__
    frame: FrameType | None = None
    line = 0
    while trace is not None:
        frame, line = trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next
    places = []
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        # It used the API wrongly: where it did is of interest.
        frame = frame.f_back
        line = 0 if frame is None else frame.f_lineno
    while frame is not None and not frame.f_code.co_filename.startswith((_OWN, _STARTER)):
        places.append(f"  {frame.f_code.co_filename}({line}): {frame.f_code.co_name}\n")
        frame = frame.f_back
        line = 0 if frame is None else frame.f_lineno
    if all("importlib" in place for place in places):
        # It is no Python, and has no places of its own.
        return told
    return f"{told}\n\nAt:\n{''.join(places)}"
