"""Lines that confined workers print: by name, escaped, and at a bounded rate."""

from __future__ import annotations

from nereid_executor.backends.python.supervisor.worker_output import OutputLines, output_budget


class Log:
    def __init__(self) -> None:
        self.now = 0.0
        self.text = ""
        self.lines = OutputLines("m_0", self.write, output_budget(lambda: self.now))

    def write(self, text: str) -> None:
        self.text += text


def test_each_line_has_the_name_of_its_instance() -> None:
    log = Log()
    log.lines.feed(b"one\n2026-01-01 INFO other: forged\nm_0: pri")
    log.lines.feed(b"nted\nend")
    log.lines.finish()
    assert log.text == ("m_0: one\nm_0: 2026-01-01 INFO other: forged\nm_0: printed\nm_0: end\n")


def test_controls_are_escaped() -> None:
    log = Log()
    log.lines.feed("a\x1b[1m\rb\u2028\xff\n".encode() + b"\xff\n")
    assert log.text == "m_0: a\\x1b[1m\\rb\\u2028\xff\nm_0: \ufffd\n"


def test_a_line_without_an_end_is_cut() -> None:
    log = Log()
    log.lines.feed(b"x" * (1 << 16))
    assert len(log.text) == (1 << 16) + len("m_0: \n")


def test_too_much_output_is_dropped_and_counted() -> None:
    log = Log()
    line = b"x" * 1023 + b"\n"
    log.lines.feed(line * 1500)
    assert log.text.count("\n") == 1024
    log.now += 1.0
    log.lines.feed(b"later\n")
    assert log.text.endswith("m_0: 476 lines were dropped: too much output\nm_0: later\n")
    # A second of silence allows 64 KiB.
    before = log.text.count("\n")
    log.lines.feed(line * 100)
    assert log.text.count("\n") - before == 63
