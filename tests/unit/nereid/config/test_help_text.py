"""The text of --help."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from nereid.config import flags
from nereid.config.flags import Topic
from nereid.config.settings_reader import read_shared_settings


@dataclass(frozen=True, kw_only=True)
class Log:
    """Flags of logging."""

    TOPIC: ClassVar = Topic.LOGGING

    log_level: str = flags.flag("info", "which lines", bare="debug")


@dataclass(frozen=True, kw_only=True)
class Example(Log):
    """An example's settings."""

    TOPIC: ClassVar = Topic.HTTP

    repository: tuple[str, ...] = flags.flag(
        ..., "where", repeated=True, aliases=("--store",), deprecated={"--dir": "dir="}
    )
    http_port: int = flags.flag(8000, "port", flags.port)
    wait: float = flags.flag(1.5, "100% of the time", flags.seconds)


def shown(capsys: pytest.CaptureFixture[str], *argv: str, common: frozenset[str]) -> str:
    with pytest.raises(SystemExit) as exit_info:
        read_shared_settings((Example,), argv, {}, "example", common=common)
    assert exit_info.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["--help", "-h", "--help-all"])
def test_help_shows_every_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, name, common=frozenset())
    assert "--http-port" in text
    assert "100% of the time (default: 1.5)" in text
    assert "An example's settings." in text


def test_each_flag_is_one_entry_below_its_topic(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "--help", common=frozenset()).splitlines()
    entries = [line.split()[0] for line in lines if line.startswith(("  --", "HTTP", "Logging"))]
    assert entries == ["HTTP:", "--repository", "--http-port", "--wait", "Logging:", "--log-level"]
    (repository,) = [line for line in lines if "--repository" in line]
    assert repository.endswith("where (required; alias: --store; older forms: --dir)")
    assert any("--log-level [VALUE]" in line for line in lines)


def test_common_flags_alone_unless_all_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    common = frozenset({"http_port"})
    short = shown(capsys, "--help", common=common)
    assert "--http-port" in short
    assert "--log-level" not in short
    assert "--help-all shows the other 3" in short
    assert "--log-level" in shown(capsys, "--help-all", common=common)
