"""Which command is meant."""

import pytest

from nereid_perf.command import main


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "nereid perf compare" in printed
    assert "--concurrency-range" in printed
    assert "--help-all shows the other" in printed
    assert "Exit status: 0: measured" in printed
    assert main(["nothing"]) == 2
    assert "unknown command 'nothing'" in capsys.readouterr().err
    for name in ("run", "compare", "report", "mock"):
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
    assert "usage: nereid perf compare A B [FLAGS]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["-m", "x", "--workers=0"], "--workers"),
        (["compare", "host:1", "-m", "x"], "expected two servers, or two files of --json"),
        (["compare", "host:1", "nowhere", "-m", "x"], "expected host:port"),
        (["compare", "host:1", "host:2", "-u", "host:3", "-m", "x"], "A and B are the servers"),
        (["compare", "host:1", "host:2", "-m", "x", "--rounds=2"], "rounds at least"),
        (["compare", "host:1", "host:2", "-m", "x", "--records=f"], "--records"),
        (["compare", "host:1", "host:2", "-m", "x", "--request-count=2"], "no --request-count"),
        (["report", "--html=x"], "expected files of --json"),
    ],
)
def test_command_lines_that_cannot_be(
    argv: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(argv)
    assert refused.value.code == 2
    assert text in capsys.readouterr().err
