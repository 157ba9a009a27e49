"""Measure the branch coverage of modules in folders that setup.py finds marked as covered.

usage: branch_coverage.py [--print-ignored | ARGUMENT of pytest ...]. The script runs the unit tests
of the layers that have such folders. It fails if the coverage is below the recorded share.
--print-ignored: print pytest's arguments for a run without these tests instead.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from setup import marked_modules  # noqa: E402 - the checkout is not on the path of a script

MIN_PERCENT = 99.5


def main() -> None:
    modules = marked_modules("covered", ROOT)
    # The first two names of a module are its layer.
    layers = {"/".join(name.split(".")[:2]) for name in modules}
    folders = [f"tests/unit/{layer}" for layer in sorted(layers)]
    if sys.argv[1:] == ["--print-ignored"]:
        print(*(f"--ignore={folder}" for folder in folders))
        return
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-n", "2", *folders),
        *(f"--cov={name}" for name in modules),
        "--cov-config=pyproject.toml",
        "--cov-branch",
        "--cov-report=term:skip-covered",
        f"--cov-fail-under={MIN_PERCENT}",
        *sys.argv[1:],
    ]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
