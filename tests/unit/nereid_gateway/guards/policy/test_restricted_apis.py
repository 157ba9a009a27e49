"""What the flags of restricted APIs say; what they do is tests/service/test_gateway_guards."""

from __future__ import annotations

import pytest

from nereid.config.settings_reader import secret_environ, settings_argv
from nereid_gateway import settings
from nereid_gateway.core.access.api_groups import APIS
from nereid_gateway.guards.policy.restricted_apis import Restriction, gather, parse


@pytest.mark.parametrize(
    ("text", "header", "value"),
    [
        ("health,trace:key=value", "key", "value"),
        ("health,trace:key=a=b", "key", "a=b"),
        ("health,trace:a:b=c", "a:b", "c"),
    ],
)
def test_forms(text: str, header: str, value: str) -> None:
    restriction = Restriction(header, value)
    assert parse(text) == {"health": restriction, "trace": restriction}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("health", "expected"),
        ("health:key", "expected"),
        ("health:=value", "expected"),
        ("health:key=", "expected"),
        (":key=value", "expected"),
        ("nope:key=value", "'nope' is none of health, metadata"),
        ("HEALTH:key=value", "'HEALTH' is none of"),
        ("health,health:key=value", "'health' is named twice"),
    ],
)
def test_errors(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text)


def test_several_flags_share_no_category() -> None:
    table = gather([f"{name}:key={number}" for number, name in enumerate(APIS)])
    assert table["logging"] == Restriction("key", "8")
    with pytest.raises(ValueError, match="'trace' is restricted twice"):
        gather(["trace:a=b", "health,trace:c=d"])


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--http-restricted-api=nope:a=b"], "'nope' is none of"),
        (["--grpc-restricted-protocol=trace"], "expected <api>,<api>:<header>=<value>"),
        (
            ["--http-restricted-api=trace:a=b", "--http-restricted-api=trace:c=d"],
            "--http-restricted-api: 'trace' is restricted twice",
        ),
        (["--http-header-forward-pattern=("], "not a pattern of RE2"),
        (["--grpc-header-forward-pattern=(?=a)"], "not a pattern of RE2"),
    ],
)
def test_errors_of_the_flags_end_the_start(
    argv: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        settings.read(argv, {})
    assert ending.value.code == 2
    assert text in capsys.readouterr().err


def test_the_flags_survive_being_passed_on() -> None:
    argv = [
        "--http-restricted-api=trace:a=b",
        "--http-restricted-api=health,logging:c=d",
        "--grpc-header-forward-pattern=^x-",
    ]
    made = settings.read(argv, {})
    assert settings.read(settings_argv(made), secret_environ(made)) == made
    assert "trace:a=b" not in " ".join(settings_argv(made))
    assert len(made.http_restricted_api) == 2
