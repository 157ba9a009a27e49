"""Formats exceptions that models raise as texts for clients, in Triton's form."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

# `_OWN`: directory of the Python backend. `_BOTTOM`: file of every stack's outermost frame.
_OWN = str(Path(__file__).parents[3])
_MAX_CAUSES = 20
_BOTTOM = "<frozen runpy>"
# Texts that explain errors of the system, by errno.
_advice: dict[int, str] = {}
_UNAVAILABLE = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"


class ModelMisuse(Exception):
    """Raised if a model returns something invalid; reported without type and stack."""


def explain_errors(advice: dict[str, str]) -> None:
    """Add a text to errors of the system, also if they cause others; advice: texts by errno."""
    _advice.update({int(number): text for number, text in advice.items()})


def error_text(error: BaseException) -> str:
    """Return the exception and its stack, innermost frame first, without the worker's frames."""
    # File names may contain lone surrogates, which UTF-8 cannot encode.
    return _describe(error).encode("utf-8", "backslashreplace").decode()


def traceback_text(error: BaseException) -> str:
    """Return the traceback as Python prints it, for the log, without the worker's frames."""
    if isinstance(error, ModelMisuse):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    return "".join(lines).rstrip("\n").encode("utf-8", "backslashreplace").decode()


def _describe(error: BaseException) -> str:
    try:
        return _with_stack(error, (str(error) or "<EMPTY MESSAGE>") + _explanation(error))
    except Exception as another:
        text = _with_stack(error, _UNAVAILABLE)
        try:
            why = _with_stack(another, str(another))
        except Exception:
            why = _with_stack(another, _UNAVAILABLE)
        return f"{text}\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: {why}"


def _explanation(error: BaseException) -> str:
    """Return the advice for the first error of the system among the causes of an error."""
    cause: BaseException | None = error
    # A model could make a circle of them.
    for _ in range(_MAX_CAUSES):
        if isinstance(cause, OSError) and cause.errno in _advice:
            return f" ({_advice[cause.errno]})"
        if cause is None:
            break
        cause = cause.__cause__ or cause.__context__
    return ""


def _with_stack(error: BaseException, message: str) -> str:
    if isinstance(error, ModelMisuse):
        return message
    text = f"{type(error).__name__}: {message}"
    trace = error.__traceback__
    frame: FrameType | None = None
    line = 0
    while trace is not None:
        frame, line = trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next
    places = []
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        # The model misused the API. Skip the API's frames, so that the stack begins with its call.
        frame = frame.f_back
        line = 0 if frame is None else frame.f_lineno
    while frame is not None and not frame.f_code.co_filename.startswith((_OWN, _BOTTOM)):
        places.append(f"  {frame.f_code.co_filename}({line}): {frame.f_code.co_name}\n")
        frame = frame.f_back
        line = 0 if frame is None else frame.f_lineno
    if all("importlib" in place for place in places):
        return text
    return f"{text}\n\nAt:\n{''.join(places)}"
