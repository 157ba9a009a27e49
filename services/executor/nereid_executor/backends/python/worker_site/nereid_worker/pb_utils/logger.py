"""The log of the server, as models write to it."""

from __future__ import annotations

from ..connection.executor_connection import current_connection
from ..protocol import wire
from .arguments import instance_of, text_of
from .enums import NamedEnum


class LogLevel(NamedEnum):
    """Triton's levels."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


# Inside Logger the name is its attribute.
Level = LogLevel


class Logger:
    """Writes lines to the server's log; has static methods only."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    def __init__(self) -> None:
        raise TypeError("Logger has no constructor: call its static methods")

    @staticmethod
    def log(message: str, level: Level = LogLevel.INFO) -> None:
        message = text_of(message, "Logger: message")
        instance_of(level, LogLevel, "Logger: level")
        if level != LogLevel.VERBOSE or current_connection().verbose:
            current_connection().notify(wire.LOG, [int(level), message])

    @staticmethod
    def log_info(message: str) -> None:
        Logger.log(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        Logger.log(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        Logger.log(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        Logger.log(message, LogLevel.VERBOSE)
