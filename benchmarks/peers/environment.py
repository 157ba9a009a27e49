"""Virtual environments of the peers, made on first use and kept."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.failure import BenchError

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "nereid-bench")
MARK = "nereid-bench.txt"


def ensure(venv: Path, *requirements: str) -> None:
    """Make the environment if it is missing: the requirements, and our version of onnxruntime."""
    wanted = " ".join((*requirements, f"onnxruntime=={version('onnxruntime')}"))
    mark = venv / MARK
    if mark.exists() and mark.read_text() == wanted:
        return
    print(f"installing {wanted} into {venv} (once)", flush=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "--disable-pip-version-check", *wanted.split()], check=True)
    except subprocess.CalledProcessError as error:
        raise BenchError(f"{wanted} could not be installed into {venv}: {error}") from error
    mark.write_text(wanted)


def onnxruntime_version(venv: Path) -> str:
    """Return the version of onnxruntime in an environment."""
    found = sorted(venv.glob("lib/python3*/site-packages/onnxruntime-*.dist-info"))
    if not found:
        raise BenchError(f"{venv} has no onnxruntime")
    return found[-1].name.removeprefix("onnxruntime-").removesuffix(".dist-info")
