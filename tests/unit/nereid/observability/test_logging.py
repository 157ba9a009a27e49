"""Log lines in each format, with the ids of their requests."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from nereid.config.settings_reader import read_settings
from nereid.observability.logging import LogSettings, request_log_extra, set_up_logging

CONTEXT = bytes.fromhex("00" + "ab" * 16 + "cd" * 8 + "01")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(settings: LogSettings, level: int = logging.INFO, **how: object) -> str:
    stream = io.StringIO()
    set_up_logging(settings, "gateway", stream)
    logging.getLogger("some.where").log(level, "it %s", "happened", **how)  # type: ignore[arg-type]
    return stream.getvalue()


def test_text_ends_with_the_ids_of_the_request() -> None:
    line = logged(LogSettings(), extra=request_log_extra("seven", CONTEXT))
    assert line.endswith(f" INFO some.where: it happened [request_id=seven trace_id={'ab' * 16}]\n")


def test_text_without_a_request() -> None:
    assert logged(LogSettings()).endswith(" INFO some.where: it happened\n")


@pytest.mark.parametrize("log_format", ["text", "json", "default", "ISO8601"])
def test_a_clients_id_cannot_forge_a_line(log_format: str) -> None:
    text = logged(
        LogSettings(log_format=log_format), extra=request_log_extra('x]\nERROR "all is lost"')
    )
    assert text.count("\n") == 1


def test_json_has_every_fact_as_a_member() -> None:
    settings = LogSettings(log_format="json")
    line = json.loads(logged(settings, logging.WARNING, extra=request_log_extra("seven", CONTEXT)))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "service": "gateway",
        "logger": "some.where",
        "message": "it happened",
        "request_id": "seven",
        "trace_id": "ab" * 16,
    }


def test_json_leaves_out_what_is_not_known_and_keeps_the_trace_of_an_exception() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        text = logged(LogSettings(log_format="json"), logging.ERROR, exc_info=error)
    line = json.loads(text)
    assert "request_id" not in line
    assert "trace_id" not in line
    assert "ValueError: why" in line["exception"]


def test_tritons_forms() -> None:
    plain = logged(LogSettings(log_format="default"), logging.WARNING)
    assert plain.startswith("W")
    assert plain.endswith('] "it happened"\n')
    iso = logged(LogSettings(log_format="ISO8601"), logging.ERROR)
    assert iso[10] == "T"
    assert "Z E " in iso


@pytest.mark.parametrize(
    ("settings", "levels"),
    [
        (LogSettings(), "info warning error"),
        (LogSettings(log_verbose=1), "debug info warning error"),
        (LogSettings(log_info=False), "warning error"),
        (LogSettings(log_warning=False), "info error"),
        (LogSettings(log_info=False, log_warning=False, log_error=False), ""),
    ],
)
def test_levels_by_flag(settings: LogSettings, levels: str) -> None:
    names = {"debug": 10, "info": 20, "warning": 30, "error": 40}
    written = [name for name, level in names.items() if logged(settings, level)]
    assert written == levels.split()


@pytest.mark.parametrize(("text", "level"), [("true", 1), ("False", 0), ("0", 0), ("4", 4)])
def test_verbosity_is_a_number_or_a_boolean(text: str, level: int) -> None:
    """NVIDIA's start script for SageMaker gives true."""
    settings = read_settings(LogSettings, [f"--log-verbose={text}"], {}, "example")
    assert settings.log_verbose == level


FORGED = "2026-01-01 00:00:00,000 ERROR nereid: all is lost"


@pytest.mark.parametrize("log_format", ["text", "json", "default", "ISO8601"])
@pytest.mark.parametrize(
    "control", ["\n", "\r", "\r\n", "\x1b[2J", "\x85", "\x9b2J", "\u2028", "\u202e", "\ud800"]
)
def test_a_clients_text_cannot_forge_a_line(log_format: str, control: str) -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings(log_format=log_format), "gateway", stream)
    logging.getLogger("some.where").info("unknown model '%s'", f"x{control}{FORGED}")
    text = stream.getvalue()
    assert text.endswith("\n")
    assert len(text.splitlines()) == 1
    assert text[:-1].isprintable()
    # It can be written whatever it holds.
    assert FORGED in text.encode().decode()


@pytest.mark.parametrize("log_format", ["text", "default"])
def test_a_tracebacks_lines_are_no_lines_of_the_log(log_format: str) -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings(log_format=log_format), "gateway", stream)
    try:
        raise ValueError(f"unknown model 'x\n{FORGED}\x1b'")
    except ValueError:
        logging.getLogger("some.where").exception("it failed")
    first, *others = stream.getvalue().splitlines()
    assert "it failed" in first
    assert any(FORGED in line for line in others)
    assert all(line.startswith("    ") for line in others)
    assert all(line.isprintable() for line in others)


def test_ordinary_text_is_not_changed() -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings(), "gateway", stream)
    logging.getLogger("some.where").info("modèle 'été' 模型\tready")
    assert stream.getvalue().endswith("modèle 'été' 模型\tready\n")
