"""What one group of flags means for another."""

from pathlib import Path

import pytest

from nereid_perf.measurement import LoadLevel
from nereid_perf.run_settings import RunSettings, read_run_settings, without_secrets


def _read(*argv: str) -> RunSettings:
    return read_run_settings(argv, "nereid perf")


@pytest.mark.parametrize(
    ("argv", "level"),
    [
        (("--replay=trace", "--replay-speed=2"), LoadLevel("trace", 2)),
        (("-m", "a", "--periodic-concurrency-range=1:8:1"), LoadLevel("concurrency", 8)),
    ],
)
def test_loads_that_are_no_range(argv: tuple[str, ...], level: LoadLevel) -> None:
    levels = _read(*argv).levels
    assert levels is not None
    assert list(levels.levels()) == [level]


def test_ranges_are_the_questions() -> None:
    assert _read("-m", "a", "--concurrency-range=1:4").levels is None


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("--replay=trace", "--concurrency-range=2"), "give no range"),
        (("--replay=trace", "--find-max-rate", "--slo=p99=1ms"), "give no load"),
        (("--replay=trace", "--periodic-concurrency-range=1:2:1"), "give no other load"),
        (("--find-max-rate", "--slo=p99=1ms", "--request-count=9"), "no --request-count"),
        (("--endpoint=chat", "--replay=trace"), "--replay: not with --endpoint"),
        (("--endpoint=chat", "--input-data=zero"), "zero: not with --endpoint"),
        (("--endpoint=chat", "-i", "grpc"), "--endpoint needs -i http"),
        (("--streaming",), "--streaming needs -i grpc, or --endpoint chat"),
        (("--json=/nowhere/at/all.json",), "--json: there is no directory '/nowhere/at'"),
    ],
)
def test_flags_that_cannot_be(
    argv: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        _read("-m", "a", *argv)
    assert refused.value.code == 2
    assert text in capsys.readouterr().err


def test_help_shows_the_common_flags_and_the_exit_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for flag, is_rare in (("--help", False), ("--help-all", True)):
        with pytest.raises(SystemExit) as ended:
            _read(flag)
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert ("--gamma-variation" in shown) == is_rare
        assert "--concurrency-range" in shown
        assert "4: the client was the bottleneck" in shown
        assert "NEREID_" not in shown


def test_lines_for_each_window_by_either_name(tmp_path: Path) -> None:
    assert _read("-m", "a", "-v").output.view == "plain"
    assert _read("-m", "a", "--live=off", f"--csv={tmp_path}/a").output.view == "off"


def test_headers_are_not_kept() -> None:
    argv = ["-H", "a: secret", "--header=a: secret", "-Ha:secret", "--header", "b: secret", "-m=x"]
    shown = without_secrets(argv)
    assert shown == ["-H", "...", "--header=...", "-H...", "--header", "...", "-m=x"]
