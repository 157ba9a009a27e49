"""Triton's flags that have no equivalent here."""

import pytest

from nereid.cli.serve.triton_flags import TritonFlags
from nereid.config.settings_reader import read_settings

# Flags, and which of them are listed as changing nothing.
ACCEPTED = [
    ("", ""),
    ("--allow-sagemaker false --allow-vertex-ai=False", ""),
    ("--response-cache-byte-size=1048576", ""),
    ("--pinned-memory-pool-byte-size 268435456", "--pinned-memory-pool-byte-size"),
    ("--cuda-memory-pool-byte-size=0:1 --cuda-memory-pool-byte-size=1:1",
     "--cuda-memory-pool-byte-size"),
    ("--host-policy=a,numa-node=0 --cache-directory=/opt", "--host-policy --cache-directory"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "ignored"), ACCEPTED)
def test_flags_without_effect_are_accepted_and_listed(argv: str, ignored: str) -> None:
    assert read_settings(TritonFlags, argv.split(), {}, "serve").without_effect() == ignored.split()


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ("--allow-sagemaker=1", "not offered; clients ask by KServe v2"),
        ("--allow-vertex-ai", "not offered; clients ask by KServe v2"),
        ("--allow-vertex-ai=maybe", "expected true or false"),
        ("--response-cache-byte-size=0", "at least 1"),
    ],
)
def test_features_that_are_not_offered_are_refused_with_an_alternative(
    argv: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_settings(TritonFlags, argv.split(), {}, "serve")
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
