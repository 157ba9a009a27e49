"""Triton's flags that have no equivalent here."""

import pytest

from nereid.config.settings_reader import read_settings
from nereid_mesh.serve.triton_flags import TritonFlags

# Flags, and which of them are listed as changing nothing.
ACCEPTED = [
    ("", ""),
    ("--response-cache-byte-size=1048576", ""),
    ("--pinned-memory-pool-byte-size 268435456", "--pinned-memory-pool-byte-size"),
    ("--cuda-memory-pool-byte-size=0:1 --cuda-memory-pool-byte-size=1:1",
     "--cuda-memory-pool-byte-size"),
    ("--host-policy=a,numa-node=0 --cache-directory=/opt", "--host-policy --cache-directory"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "ignored"), ACCEPTED)
def test_flags_without_effect_are_accepted_and_listed(argv: str, ignored: str) -> None:
    assert read_settings(TritonFlags, argv.split(), {}, "serve").without_effect() == ignored.split()


def test_a_value_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_settings(TritonFlags, ["--response-cache-byte-size=0"], {}, "serve")
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "at least 1" in line
