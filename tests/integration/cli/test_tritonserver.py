"""The executable under Triton's name."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_MAIN = "import sys; sys.argv[0] = {!r}; from nereid.cli import main; main()"


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("/usr/bin/tritonserver", ()),
        # As arguments of Triton's image begin.
        ("nereid", ("serve", "tritonserver")),
    ],
)
def test_manifests_for_triton_start_a_mesh(
    program: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    """The mesh does not start: there is no such repository."""
    missing = tmp_path / "missing"
    command = [sys.executable, "-c", _MAIN.format(program), *arguments]
    result = subprocess.run(
        [*command, f"--model-store={missing}", "--grpc-port=0", "--http-port=0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2, result
    assert result.stderr.startswith("nereid serve: ")
    assert str(missing) in result.stderr
