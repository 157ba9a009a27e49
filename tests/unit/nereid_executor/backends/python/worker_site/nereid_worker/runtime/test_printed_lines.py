"""What models print, as lines of the executor's log."""

import io

from nereid_executor.backends.python.worker_site.nereid_worker.runtime import printed_lines


def test_lines_say_whose_they_are_and_keep_no_escapes() -> None:
    stream = io.StringIO()
    printed = printed_lines.PrintedLines(stream, "m_0")
    print("one", 2, "two\nERROR nereid: forged \x1b[31m\x07\u202e\rend\t", file=printed)
    print("no end", end="", file=printed, flush=True)
    printed.finish()
    printed.finish()
    assert stream.getvalue().splitlines() == [
        "m_0: one 2 two",
        "m_0: ERROR nereid: forged \\x1b[31m\\x07\\u202e\\rend\t",
        "m_0: no end",
    ]


def test_a_line_without_an_end_is_bounded() -> None:
    stream = io.StringIO()
    printed = printed_lines.PrintedLines(stream, "m_0")
    for _ in range(300):
        printed.write("x" * 1000)
    printed.write("y" * 200_000 + "\n")
    printed.finish()
    lines = [each.removeprefix("m_0: ") for each in stream.getvalue().splitlines()]
    assert "".join(lines) == "x" * 300_000 + "y" * 200_000
    assert max(map(len, lines)) == 1 << 16
