"""The errors that model.py files raise, catch and respond with."""

from __future__ import annotations

from typing import Any

from .enums import NamedEnum


class TritonModelException(Exception):
    """What the API raises when it is used wrongly, and what models may raise."""


class ErrorCode(NamedEnum):
    """Triton's codes for errors."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


ErrorCode.__name__ = ErrorCode.__qualname__ = "__ErrorCode"
# Unpickling looks it up by this name.
__ErrorCode = ErrorCode


def text_of(value: Any, what: str) -> str:
    """A text given by a model, str or bytes. Raises TypeError."""
    try:
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, str):
            value.encode()
            return str.__str__(value)
    except UnicodeError as error:
        raise TypeError(f"{what}: {error}") from None
    raise TypeError(f"{what}: expected a text, got {type(value).__name__}")


class TritonError:
    """The failure of one request: part of a response, not raised."""

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    __slots__ = ("_code", "_message")

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        if not isinstance(code, ErrorCode):
            raise TypeError("TritonError(): expected a text and one of TritonError's codes")
        self._message = text_of(message, "TritonError()")
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> ErrorCode:
        return self._code
