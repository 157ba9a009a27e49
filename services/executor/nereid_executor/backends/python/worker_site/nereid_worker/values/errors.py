"""Errors that model.py files raise, catch and respond with."""

from __future__ import annotations

from .arguments import instance_of, text_of
from .enums import NamedEnum


class TritonModelException(Exception):
    """Raised by the API when a call fails or is used wrongly; models may raise it as well."""


class ErrorCode(NamedEnum):
    """Triton's error codes; models use them as attributes of `TritonError`."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7
    # Triton has no such code. A model gets it when it may not call another.
    PERMISSION_DENIED = 8


ErrorCode.__name__ = ErrorCode.__qualname__ = "__ErrorCode"
# Unpickling looks up the class by this name.
__ErrorCode = ErrorCode


class TritonError:
    """The failure of one request. An error is part of a response and is not raised."""

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
        self._message = text_of(message, "TritonError(): message")
        self._code: ErrorCode = instance_of(code, ErrorCode, "TritonError(): code")

    def message(self) -> str:
        """Return the message for the client."""
        return self._message

    def code(self) -> ErrorCode:
        """Return the error code, by default `TritonError.INTERNAL`."""
        return self._code
