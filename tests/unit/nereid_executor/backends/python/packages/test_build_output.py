"""How far a build is, and why it failed."""

from __future__ import annotations

from nereid_executor.backends.python.packages.build_output import BuildOutput


def test_progress() -> None:
    output = BuildOutput()
    lines = {
        "Collecting alpha": "",
        "Resolved 12 packages in 3ms": "installing 12 packages",
        "   Building beta==1.0": "installing 12 packages: building beta==1.0",
        "Downloading torch (700 MiB)": "installing 12 packages: downloading torch",
        "Installing collected packages: alpha": "installing 1 package",
        "Building wheel for alpha (pyproject.toml)": "installing 1 package: building alpha",
    }
    assert {line: output.add(line) for line in lines} == lines


def test_last_words_are_short_plain_and_without_passwords() -> None:
    output = BuildOutput()
    for number in range(50):
        output.add(f"line {number}")
    output.add("\x1b[31merror\x1b[0m: https://me:secret@host/x is \x07 not there\r")
    words = output.last_words()
    assert words.startswith("line 31 line 32")
    assert words.endswith("line 49 error: https://***@host/x is \\u0007 not there")
    for _ in range(20):
        output.add("x" * 5000)
    assert len(output.last_words()) == 1500
