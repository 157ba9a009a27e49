"""Flags of Triton's start scripts that no service of ours has a use for."""

import pytest

from nereid.cli.serve.triton_flags import TritonFlags
from nereid.config.flags import read

# Flags, and which of them are told to change nothing.
TAKEN = [
    ("", ""),
    ("--rate-limit=off --model-namespacing=0 --allow-sagemaker false --allow-vertex-ai=False", ""),
    ("--response-cache-byte-size=1048576", ""),
    ("--pinned-memory-pool-byte-size 268435456", "--pinned-memory-pool-byte-size"),
    ("--cuda-memory-pool-byte-size=0:1 --cuda-memory-pool-byte-size=1:1",
     "--cuda-memory-pool-byte-size"),
    ("--host-policy=a,numa-node=0 --rate-limit-resource=R:1 --cache-directory=/opt",
     "--rate-limit-resource --host-policy --cache-directory"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "idle"), TAKEN)
def test_what_tunes_nothing_here_is_taken_and_told(argv: str, idle: str) -> None:
    assert read(TritonFlags, argv.split(), {}, "serve").without_effect() == idle.split()


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ("--rate-limit=execution_count", "'execution_count': not offered; bound what runs"),
        ("--model-namespacing=true", "not offered; give models of all repositories names"),
        ("--allow-sagemaker=1", "not offered; clients ask by KServe v2"),
        ("--allow-vertex-ai", "not offered; clients ask by KServe v2"),
        ("--allow-vertex-ai=maybe", "expected true or false"),
        ("--response-cache-byte-size=0", "at least 1"),
    ],
)
def test_what_is_not_offered_is_refused_with_what_to_do(
    argv: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read(TritonFlags, argv.split(), {}, "serve")
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
