"""Settings from a command line and the environment, and back."""

from dataclasses import dataclass

import pytest

from nereid.config import flags
from nereid.config.hardened import HardenedSettings
from nereid.config.settings_reader import (
    exit_on_errors,
    read_settings,
    read_shared_settings,
    secret_environ,
    settings_argv,
)


@dataclass(frozen=True)
class Example:
    """An example's settings."""

    repository: tuple[str, ...] = flags.flag(..., "where", repeated=True, aliases=("--store",))
    http_port: int = flags.flag(8000, "port", flags.port)
    strict: bool = flags.flag(True, "strictly", flags.boolean, bare="true")
    wait: float = flags.flag(1.5, "100% of the time", flags.seconds)
    engine: str = flags.flag("a", "which", flags.choice("a", "b"))
    listen: str = flags.flag("x:1", "where", flags.address)

    def errors(self) -> list[str]:
        return ["strict needs port 8000"] if self.strict and self.http_port != 8000 else []


@dataclass(frozen=True)
class Renamed:
    """Settings that had another flag once."""

    levels: tuple[str, ...] = flags.flag((), "how", repeated=True, deprecated={"--high": "high="})


@dataclass(frozen=True)
class Other:
    """Another's settings."""

    http_port: int = flags.flag(8000, "port", flags.port)
    level: int = flags.flag(0, "level", flags.integer(0))


def test_flags_win_over_the_environment() -> None:
    environ = {"NEREID_REPOSITORY": "/a;/b", "NEREID_WAIT": "3", "NEREID_ENGINE": "b"}
    settings = read_settings(Example, ["--wait=4", "--strict"], environ, "example")
    assert settings == Example(("/a", "/b"), wait=4.0, engine="b")


def test_words_in_upper_case_are_those_in_lower_case() -> None:
    assert read_settings(Example, ["--store=/a", "--engine=B"], {}, "example").engine == "b"


def test_aliases_and_repetition() -> None:
    settings = read_settings(Example, ["--store", "/a", "--repository=/b"], {}, "example")
    assert settings.repository == ("/a", "/b")


def test_deprecated_flags_are_read_as_the_newer_which_wins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--levels=b", "--high", "2", "--high=3"]
    settings = read_settings(Renamed, argv, {"NEREID_LEVELS": "c"}, "example")
    assert settings.levels == ("high=2", "high=3", "b")
    # A child that is started with these settings does not warn again.
    assert settings_argv(settings) == ["--levels=high=2", "--levels=high=3", "--levels=b"]
    assert capsys.readouterr().err.splitlines() == [
        "example: warning: a flag of older versions, read as --levels high=2",
        "example: warning: a flag of older versions, read as --levels high=3",
    ]
    assert read_settings(Renamed, [], {"NEREID_LEVELS": "c"}, "example").levels == ("c",)
    with pytest.raises(SystemExit):
        read_settings(Renamed, ["--hihg=2"], {}, "example")
    assert capsys.readouterr().err == "example: unknown argument '--hihg'; did you mean --high?\n"


def test_all_errors_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--http-port=70000", "--strict=maybe", "--wait=-1", "--nonsense", "--listen=nowhere"]
    with pytest.raises(SystemExit) as exit_info:
        read_settings(Example, argv, {"NEREID_ENGINE": "c"}, "example")
    assert exit_info.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "example: unknown argument '--nonsense'",
        "example: --repository is required",
        "example: --http-port: '70000': expected a whole number from 0 to 65535",
        "example: --strict: 'maybe': expected true or false",
        "example: --wait: '-1': expected a number of seconds, not negative",
        "example: NEREID_ENGINE: 'c': expected one of a, b",
        "example: --listen: 'nowhere': expected host:port or unix:/path",
    ]


def test_errors_of_settings_as_a_whole_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(Example, ["--repository=/a", "--http-port=1"], {}, "example")
    assert capsys.readouterr().err == "example: strict needs port 8000\n"


def test_settings_that_share_a_command_line() -> None:
    example, other = read_shared_settings(
        (Example, Other), ["--repository=/a", "--http-port=8000", "--level", "2"], {}, "example"
    )
    assert example == Example(("/a",))
    assert other == Other(level=2)


def test_arguments_are_read_back_whatever_the_environment_says() -> None:
    settings = Example(("/a", "/b c"), strict=False, listen="unix:/s")
    assert settings_argv(settings) == [
        "--repository=/a",
        "--repository=/b c",
        "--http-port=8000",
        "--strict=false",
        "--wait=1.5",
        "--engine=a",
        "--listen=unix:/s",
    ]
    environ = {"NEREID_HTTP_PORT": "9", "NEREID_STRICT": "true"}
    assert read_settings(Example, settings_argv(settings), environ, "example") == settings


@dataclass(frozen=True)
class Guarded:
    """Settings with secrets."""

    keys: tuple[str, ...] = flags.flag((), "several", flags.choice("a;b", "c"), repeated=True,
        secret=True)  # fmt: skip
    word: str = flags.flag("", "one", flags.choice("", "d"), secret=True)
    open: int = flags.flag(0, "plain", flags.integer(0))


@pytest.mark.parametrize("settings", [Guarded(("a;b", "c"), "d", 1), Guarded(("c",)), Guarded()])
def test_secret_settings_are_passed_by_the_environment_only(settings: Guarded) -> None:
    argv, environ = settings_argv(settings), secret_environ(settings)
    assert argv == [f"--open={settings.open}"]
    assert read_settings(Guarded, argv, environ, "example") == settings


def test_a_bad_secret_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(Guarded, ["--word=geheim"], {"NEREID_KEYS": '["geheim'}, "example")
    assert capsys.readouterr().err.splitlines() == [
        "example: NEREID_KEYS: expected one of a;b, c",
        "example: --word: expected one of , d",
    ]


def test_unset_settings_are_no_arguments() -> None:
    @dataclass(frozen=True)
    class Optional:
        """Settings with nothing in them."""

        name: str | None = flags.flag(None, "a name")

    assert settings_argv(Optional()) == []


@pytest.mark.parametrize(
    ("argv", "endings"),
    [
        (["--http-prot", "8000"], ["--http-prot'; did you mean --http-port?"]),
        (["--http-prot=1", "stray"], ["--http-prot'; did you mean --http-port?", "'stray'"]),
        (["--stoer", "/a"], ["--stoer'; did you mean --store?"]),
        (["stray", "-x"], ["'stray'", "'-x'"]),
    ],
)
def test_an_unknown_flag_is_reported_with_a_similar_one(
    argv: list[str], endings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read_settings(Example, ["--repository=/a", *argv], {}, "example")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(endings)
    assert all(line.endswith(end) for line, end in zip(lines, endings, strict=True)), lines


@dataclass(frozen=True)
class Second:
    """Another service, whose flag of the same name means something else."""

    http_port: int = flags.flag(-1, "the second's port", flags.own_port)
    names: tuple[str, ...] = flags.flag(("a", "b"), "names", repeated=True)


def test_of_equal_names_the_first_declaration_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_shared_settings((Example, Second), ["--help"], {}, "example")
    text = capsys.readouterr().out
    assert "second's" not in text
    assert "(default: a, b)" in text
    with pytest.raises(SystemExit):
        read_shared_settings(
            (Example, Second), ["--repository=/a", "--http-port=-1"], {}, "example"
        )
    assert "from 0 to 65535" in capsys.readouterr().err


def test_an_error_that_two_services_find_is_reported_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        exit_on_errors(["one", "two", "one"], "example")
    assert capsys.readouterr().err.splitlines() == ["example: one", "example: two"]


@dataclass(frozen=True)
class Closable(HardenedSettings):
    """Settings with another default when hardened."""

    open_port: bool = flags.flag(True, "a port", flags.boolean, hardened="false")
    other: int = flags.flag(1, "another", flags.integer(0))


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        ([], {}, Closable()),
        (["--hardened"], {}, Closable(hardened=True, open_port=False)),
        ([], {"NEREID_HARDENED": "1"}, Closable(hardened=True, open_port=False)),
        # What is said wins.
        (["--hardened", "--open-port=true"], {}, Closable(hardened=True)),
        (["--hardened"], {"NEREID_OPEN_PORT": "true"}, Closable(hardened=True)),
        (["--hardened=false"], {"NEREID_HARDENED": "1"}, Closable()),
    ],
)
def test_hardened_changes_defaults_and_nothing_that_is_given(
    argv: list[str], environ: dict[str, str], expected: Closable
) -> None:
    settings = read_settings(Closable, argv, environ, "example")
    assert settings == expected
    # And so a child reads it.
    assert read_settings(Closable, settings_argv(settings), {}, "example") == expected


@dataclass(frozen=True)
class Hosted:
    """Settings that a hosting platform knows by names of its own."""

    mode: bool = flags.flag(
        False, "hosted", flags.boolean, platform=flags.PlatformVariable("MODE", {"ON": "true"})
    )
    where: int = flags.flag(1, "a port", flags.port, platform=flags.PlatformVariable("PORT"))
    names: tuple[str, ...] = flags.flag(
        (), "names", repeated=True, platform=flags.PlatformVariable("NAME")
    )


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        ([], {"MODE": "ON", "PORT": "2", "NAME": "a;b"}, Hosted(True, 2, ("a;b",))),
        # Of a text that is not among those that mean something, and of none.
        ([], {"MODE": "true", "PORT": "", "NAME": ""}, Hosted()),
        (["--where=3"], {"PORT": "2", "NEREID_WHERE": "4"}, Hosted(where=3)),
        ([], {"PORT": "2", "NEREID_WHERE": "4"}, Hosted(where=4)),
    ],
)
def test_variables_of_a_platform_count_last(
    argv: list[str], environ: dict[str, str], expected: Hosted
) -> None:
    assert read_settings(Hosted, argv, environ, "example") == expected


def test_errors_and_help_name_the_platforms_variable(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, text in ((["--help"], "default from PORT"), ([], "PORT: '70000'")):
        with pytest.raises(SystemExit):
            read_settings(Hosted, argv, {"PORT": "70000"}, "example")
        shown = capsys.readouterr()
        assert text in shown.out + shown.err
