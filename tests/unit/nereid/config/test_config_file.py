"""Settings from a configuration file."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nereid.config import flags
from nereid.config.settings_reader import read_settings


@dataclass(frozen=True)
class Example:
    """An example's settings."""

    config: str = flags.flag("", "file")
    print_config: bool = flags.flag(False, "print", flags.boolean, bare="true")
    repository: tuple[str, ...] = flags.flag((), "where", repeated=True, aliases=("--store",))
    http_port: int = flags.flag(8000, "port", flags.port)
    strict: bool = flags.flag(True, "strictly", flags.boolean, bare="true")
    wait: float = flags.flag(1.5, "time", flags.seconds)
    account: str = flags.flag("", "who", secret=True)
    region: str = flags.flag("", "where", platform=flags.PlatformVariable("REGION"))


def read(path: Path, text: str, *argv: str, **environ: str) -> Example:
    file = path / "nereid.toml"
    file.write_text(text)
    return read_settings(Example, [f"--config={file}", *argv], environ, "example")


def test_keys_are_the_names_of_flags(tmp_path: Path) -> None:
    text = 'repository = ["/a", "/b"]\nhttp-port = 0\nstrict = false\nwait = 2\naccount = "x"\n'
    settings = read(tmp_path, text)
    assert (settings.repository, settings.http_port) == (("/a", "/b"), 0)
    assert (settings.strict, settings.wait, settings.account) == (False, 2.0, "x")
    assert read(tmp_path, 'store = "/a;b"').repository == ("/a;b",)
    assert read(tmp_path, "repository = []", NEREID_HTTP_PORT="1").repository == ()


def test_command_line_and_environment_replace_the_file(tmp_path: Path) -> None:
    text = 'repository = ["/a"]\nhttp-port = 1\nwait = 2\nregion = "file"'
    environ = {"NEREID_WAIT": "3", "NEREID_HTTP_PORT": "2", "REGION": "platform"}
    settings = read(tmp_path, text, "--repository=/c", "--http-port=9", **environ)
    assert (settings.repository, settings.http_port) == (("/c",), 9)
    assert (settings.wait, settings.region) == (3.0, "file")
    variable = {"NEREID_CONFIG": settings.config}
    assert read_settings(Example, [], variable, "example").http_port == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("http-prt = 1", "unknown key 'http-prt'; did you mean http-port?"),
        ("http_port = 1", "unknown key 'http_port'; did you mean http-port?"),
        ("config = 'x'", "unknown key 'config'"),
        ("[http]\nport = 1", "unknown key 'http'"),
        ("http-port = [1, 2]", "http-port: takes one value, not a list"),
        ("http-port = 2020-01-01", "http-port: expected a string, a number, true, false or a list"),
        ("repository = [['a']]", "repository: expected a string, a number"),
        ("store = 'a'\nrepository = 'b'", "'repository' and another key are one flag"),
        ("http-port = 70000", "http-port: '70000': expected a whole number from 0 to 65535"),
        ("http-port", "Expected '=' after a key"),
    ],
)
def test_errors_name_the_file_and_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, error: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        read(tmp_path, text)
    assert f"example: {tmp_path}/nereid.toml: {error}" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        read_settings(Example, ["--config", str(tmp_path / "none")], {}, "example")
    assert f"{tmp_path}/none: cannot be read: No such file" in capsys.readouterr().err
    (tmp_path / "latin").write_bytes(b'region = "\xe9"')
    with pytest.raises(SystemExit, match="2"):
        read_settings(Example, ["--config", str(tmp_path / "latin")], {}, "example")
    assert f"{tmp_path}/latin: " in capsys.readouterr().err


def test_the_printed_file_gives_the_same_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--repository=a\x7f\"'\\\n\u00e9\U0001f600", "--repository=b", "--http-port=0"]
    argv += ["--strict=false", "--account=hush"]
    with pytest.raises(SystemExit, match="0"):
        read_settings(Example, [*argv, "--print-config"], {}, "example")
    printed = capsys.readouterr().out
    assert "# wait = 1.5" in printed
    assert "hush" not in printed
    expected = read_settings(Example, argv[:-1], {}, "example")
    assert replace(read(tmp_path, printed), config="") == expected
