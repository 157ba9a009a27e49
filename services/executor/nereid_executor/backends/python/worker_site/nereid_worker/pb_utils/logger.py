"""Lets models write to the server's log."""

from __future__ import annotations

from ..connection.executor_connection import current_connection
from ..protocol import wire
from ..values.arguments import instance_of, text_of
from ..values.enums import NamedEnum


class LogLevel(NamedEnum):
    """Triton's log levels; models use them as attributes of `Logger`."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


# Inside `Logger`, the attribute `LogLevel` hides the class.
Level = LogLevel


class Logger:
    """Writes messages to the server's log. Methods are static and thread-safe.

    They raise TypeError for a wrong type, and TritonModelException outside of a worker process.
    """

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    def __init__(self) -> None:
        raise TypeError("Logger has no constructor: call its static methods")

    @staticmethod
    def log(message: str, level: Level = LogLevel.INFO) -> None:
        """Log a message. VERBOSE is dropped unless the executor logs at debug level."""
        message = text_of(message, "Logger: message")
        instance_of(level, LogLevel, "Logger: level")
        if level != LogLevel.VERBOSE or current_connection().verbose:
            current_connection().notify(wire.LOG, [int(level), message])

    @staticmethod
    def log_info(message: str) -> None:
        """Log a message at level INFO."""
        Logger.log(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log a message at level WARNING."""
        Logger.log(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        """Log a message at level ERROR."""
        Logger.log(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log a message at level VERBOSE; it is dropped unless the executor logs at debug level."""
        Logger.log(message, LogLevel.VERBOSE)
