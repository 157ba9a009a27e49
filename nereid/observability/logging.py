"""The services' logs: flags, set-up and formats.

Clients choose much of the text, so a record is one line and tracebacks are indented. Log a line
about a request with `extra=request_log_extra(...)`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from nereid.config.flags import Topic, boolean, choice, flag, integer
from nereid.core.terminal import escape_controls
from nereid.core.wire.messages import LogRules
from nereid.core.wire.trace_context import TRACE_ID
from nereid.observability.repeat_limit import RepeatLimit

if TYPE_CHECKING:
    from typing import TextIO

_LETTERS: Final = {"DEBUG": "V", "INFO": "I", "WARNING": "W", "ERROR": "E", "CRITICAL": "E"}


LOG_FORMATS: Final = ("text", "json", "default", "ISO8601")


def _appendable(path: str) -> str:
    try:
        if path:
            Path(path).open("a").close()
    except OSError as error:
        raise ValueError(error.strerror) from None
    return path


def _verbosity(text: str) -> int:
    # Triton takes both, and NVIDIA's start script for SageMaker gives true.
    level = {"true": 1, "false": 0}.get(text.lower())
    return int(integer(0)(text)) if level is None else level


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """The flags of a service's log; every service's settings have them."""

    TOPIC: ClassVar = Topic.LOGGING

    log_verbose: int = flag(
        0, "0: off; 1 and more: log every state change and failed request", _verbosity, bare="1"
    )
    log_info: bool = flag(True, "whether to log at level INFO", boolean, bare="true")
    log_warning: bool = flag(True, "whether to log warnings", boolean, bare="true")
    log_error: bool = flag(True, "whether to log errors", boolean, bare="true")
    log_format: str = flag(
        "text",
        "text: for people; json: an object a line; default, ISO8601: Triton's two forms",
        choice(*LOG_FORMATS),
    )
    log_file: str = flag("", "append the log to this file, instead of standard error", _appendable)


def initial_log_rules(settings: LogSettings) -> LogRules:
    """Return the log rules that a service starts with."""
    return LogRules(
        settings.log_verbose,
        settings.log_info,
        settings.log_warning,
        settings.log_error,
        settings.log_format,
    )


def request_log_extra(request_id: str, trace_context: bytes = b"") -> dict[str, str]:
    """Return `extra` for a log call about one request: its id and its trace id."""
    return {"request_id": request_id, "trace_id": trace_context[TRACE_ID].hex()}


def set_up_logging(settings: LogSettings, service: str, stream: TextIO | None = None) -> None:
    """Set up the process's log; `stream` replaces standard error and --log-file."""
    if stream is None and settings.log_file:
        # All services of a host may append to one file, so it stays open.
        stream = Path(settings.log_file).open("a", encoding="utf-8")  # noqa: SIM115
    handler = _Handler(stream or sys.stderr, service)
    logging.basicConfig(handlers=[handler], force=True)
    _apply_rules(handler, initial_log_rules(settings))


def apply_log_rules(rules: LogRules) -> None:
    """Apply the log rules that a client has set for all services."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler):
            _apply_rules(handler, rules)


class _Handler(logging.StreamHandler["TextIO"]):
    """Log rules apply to this kind of handler only."""

    def __init__(self, stream: TextIO, service: str) -> None:
        super().__init__(stream)
        self.service = service
        self._repeats = RepeatLimit(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        admitted = self._repeats.admit(record)
        if admitted is not None:
            super().emit(admitted)


def _apply_rules(handler: _Handler, rules: LogRules) -> None:
    wanted = {
        logging.DEBUG: rules.verbose > 0,
        logging.INFO: rules.info,
        logging.WARNING: rules.warning,
        logging.ERROR: rules.error,
        logging.CRITICAL: rules.error,
    }
    handler.setFormatter(formatter(rules.format, handler.service))
    # As in Triton, a level can be off while lower ones are on.
    handler.filters = [lambda record: wanted.get(record.levelno, True)]
    level = min((level for level, on in wanted.items() if on), default=logging.CRITICAL + 1)
    logging.getLogger().setLevel(level)


def formatter(log_format: str, service: str) -> logging.Formatter:
    """Return the formatter that --log-format names."""
    if log_format == "json":
        return _Json(service)
    if log_format == "text":
        return _Text("%(asctime)s %(levelname)s %(name)s: %(message)s")
    return _Triton(iso=log_format == "ISO8601")


class _Plain(logging.Formatter):
    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return an indented traceback, with control characters escaped."""
        # A traceback quotes error texts, which must not look like lines of the log.
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"    {escape_controls(line)}" for line in lines)


class _Text(_Plain):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line without the traceback."""
        record.message = escape_controls(record.message)
        return super().formatMessage(record) + _ids_at_end(record)


class _Triton(_Plain):
    """Triton's format: I1121 06:52:42.123456 7 service.py:98] "text", or with ISO 8601 times."""

    def __init__(self, *, iso: bool) -> None:
        super().__init__()
        self._iso = iso

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line without the traceback."""
        letter = _LETTERS.get(record.levelname, "I")
        at = time.gmtime(record.created)
        where = f"{record.process} {record.filename}:{record.lineno}]"
        text = _json(record.message) + _ids_at_end(record)
        if self._iso:
            return f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', at)} {letter} {where} {text}"
        micros = int(record.created % 1 * 1e6)
        return f"{letter}{time.strftime('%m%d %H:%M:%S', at)}.{micros:06d} {where} {text}"


class _Json(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Return the whole record as one line of JSON."""
        millis = int(record.created % 1 * 1000)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{at}.{millis:03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _request_ids(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _json(line)


def _json(value: object) -> str:
    return escape_controls(json.dumps(value, ensure_ascii=False))


def _request_ids(record: logging.LogRecord) -> dict[str, str]:
    ids = {name: getattr(record, name, None) for name in ("request_id", "trace_id")}
    return {name: text for name, text in ids.items() if text}


def _ids_at_end(record: logging.LogRecord) -> str:
    ids = _request_ids(record)
    if not ids:
        return ""
    return " [" + " ".join(f"{name}={_quoted(text)}" for name, text in ids.items()) + "]"


def _quoted(text: str) -> str:
    """Return a client's text; quote the text if it could end the line or look like a field."""
    return text if text.isprintable() and not set(text) & set(' "=[]') else json.dumps(text)
