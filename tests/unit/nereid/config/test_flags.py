"""Settings from flags and environment."""

from dataclasses import dataclass

import pytest

from nereid.config import flags


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
class Aged:
    """One that had another flag once."""

    levels: tuple[str, ...] = flags.flag((), "how", repeated=True, older={"--high": "high="})


@dataclass(frozen=True)
class Other:
    """Another's settings."""

    http_port: int = flags.flag(8000, "port", flags.port)
    level: int = flags.flag(0, "level", flags.integer(0))


def test_flags_win_over_the_environment() -> None:
    environ = {"NEREID_REPOSITORY": "/a;/b", "NEREID_WAIT": "3", "NEREID_ENGINE": "b"}
    settings = flags.read(Example, ["--wait=4", "--strict"], environ, "example")
    assert settings == Example(("/a", "/b"), wait=4.0, engine="b")


def test_aliases_and_repetition() -> None:
    settings = flags.read(Example, ["--store", "/a", "--repository=/b"], {}, "example")
    assert settings.repository == ("/a", "/b")


def test_flags_of_older_versions_are_read_as_the_newer_which_wins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--levels=b", "--high", "2", "--high=3"]
    settings = flags.read(Aged, argv, {"NEREID_LEVELS": "c"}, "example")
    assert settings.levels == ("high=2", "high=3", "b")
    # Whoever is started with these settings is not told of it again.
    assert flags.arguments(settings) == ["--levels=high=2", "--levels=high=3", "--levels=b"]
    assert capsys.readouterr().err.splitlines() == [
        "example: warning: a flag of older versions, read as --levels high=2",
        "example: warning: a flag of older versions, read as --levels high=3",
    ]
    assert flags.read(Aged, [], {"NEREID_LEVELS": "c"}, "example").levels == ("c",)
    with pytest.raises(SystemExit):
        flags.read(Aged, ["--hihg=2"], {}, "example")
    assert capsys.readouterr().err == "example: unknown argument '--hihg'; did you mean --high?\n"


def test_all_errors_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--http-port=70000", "--strict=maybe", "--wait=-1", "--nonsense", "--listen=nowhere"]
    with pytest.raises(SystemExit) as exit_info:
        flags.read(Example, argv, {"NEREID_ENGINE": "c"}, "example")
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


def test_errors_of_the_whole_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flags.read(Example, ["--repository=/a", "--http-port=1"], {}, "example")
    assert capsys.readouterr().err == "example: strict needs port 8000\n"


def test_settings_that_share_a_command_line() -> None:
    example, other = flags.read_all(
        (Example, Other), ["--repository=/a", "--http-port=8000", "--level", "2"], {}, "example"
    )
    assert example == Example(("/a",))
    assert other == Other(level=2)


def test_arguments_are_read_back_whatever_the_environment_says() -> None:
    settings = Example(("/a", "/b c"), strict=False, listen="unix:/s")
    assert flags.arguments(settings) == [
        "--repository=/a",
        "--repository=/b c",
        "--http-port=8000",
        "--strict=false",
        "--wait=1.5",
        "--engine=a",
        "--listen=unix:/s",
    ]
    environ = {"NEREID_HTTP_PORT": "9", "NEREID_STRICT": "true"}
    assert flags.read(Example, flags.arguments(settings), environ, "example") == settings


@dataclass(frozen=True)
class Guarded:
    """Settings that not everybody may see."""

    keys: tuple[str, ...] = flags.flag((), "several", flags.choice("a;b", "c"), repeated=True,
        secret=True)  # fmt: skip
    word: str = flags.flag("", "one", flags.choice("", "d"), secret=True)
    open: int = flags.flag(0, "plain", flags.integer(0))


@pytest.mark.parametrize("settings", [Guarded(("a;b", "c"), "d", 1), Guarded(("c",)), Guarded()])
def test_what_is_secret_is_handed_on_by_the_environment_alone(settings: Guarded) -> None:
    argv, environ = flags.arguments(settings), flags.environment(settings)
    assert argv == [f"--open={settings.open}"]
    assert flags.read(Guarded, argv, environ, "example") == settings


def test_what_is_secret_is_not_shown_when_it_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flags.read(Guarded, ["--word=geheim"], {"NEREID_KEYS": '["geheim'}, "example")
    assert capsys.readouterr().err.splitlines() == [
        "example: NEREID_KEYS: expected one of a;b, c",
        "example: --word: expected one of , d",
    ]


def test_what_is_not_set_is_no_argument() -> None:
    @dataclass(frozen=True)
    class Optional:
        """Settings with nothing in them."""

        name: str | None = flags.flag(None, "a name")

    assert flags.arguments(Optional()) == []


@pytest.mark.parametrize("text", ["unix:", "host:", ":80", "host:80x", "h:99999", "host"])
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        flags.address(text)


@pytest.mark.parametrize("text", ["unix:/s", "host:80", "[::1]:8001", "0.0.0.0:0"])
def test_addresses_stay_as_they_are(text: str) -> None:
    assert flags.address(text) == text


@pytest.mark.parametrize(
    ("interface", "listens"),
    [("0.0.0.0", "0.0.0.0:80"), ("::", "[::]:80"), ("[::1]", "[::1]:80"), ("unix:/s", "unix:/s")],
)
def test_an_interface_becomes_an_address(interface: str, listens: str) -> None:
    assert flags.listening_address(interface, 80) == listens


@pytest.mark.parametrize("text", ["x", "nan", "inf"])
def test_bad_seconds_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        flags.seconds(text)


def test_bad_integers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        flags.integer(3)("2")
    with pytest.raises(ValueError, match="expected a whole number"):
        flags.integer(3)("x")


def test_help_shows_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        flags.read(Example, ["--help"], {}, "example")
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert "--http-port" in text
    assert "100% of the time (default: 1.5)" in text


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--http-prot", "8000"], ["--http-prot'; did you mean --http-port?"]),
        (["--http-prot=1", "stray"], ["--http-prot'; did you mean --http-port?", "'stray'"]),
        (["--stoer", "/a"], ["--stoer'; did you mean --store?"]),
        (["stray", "-x"], ["'stray'", "'-x'"]),
    ],
)
def test_what_is_unknown_is_told_with_what_may_have_been_meant(
    argv: list[str], told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        flags.read(Example, ["--repository=/a", *argv], {}, "example")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(told)
    assert all(line.endswith(end) for line, end in zip(lines, told, strict=True)), lines


@dataclass(frozen=True)
class Second:
    """Another service, whose flag of the same name means something else."""

    http_port: int = flags.flag(-1, "the second's port", flags.own_port)
    names: tuple[str, ...] = flags.flag(("a", "b"), "names", repeated=True)


def test_of_equal_names_the_first_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flags.read_all((Example, Second), ["--help"], {}, "example")
    text = capsys.readouterr().out
    assert "second's" not in text
    assert "(default: a, b)" in text
    with pytest.raises(SystemExit):
        flags.read_all((Example, Second), ["--repository=/a", "--http-port=-1"], {}, "example")
    assert "from 0 to 65535" in capsys.readouterr().err


def test_a_error_that_two_services_find_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flags.refuse(["one", "two", "one"], "example")
    assert capsys.readouterr().err.splitlines() == ["example: one", "example: two"]
