"""Build the sdist and both wheels, install each in an empty environment and serve a request."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The identity backend needs no model file.
CONFIG = """
backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [-1] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [-1] }
"""
REQUEST = (
    b'{"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 3], "data": [1, 2, 3]}]}'
)
LIMIT_S = 120.0


def main() -> None:
    """Build and test all packages."""
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        lock = ROOT / "requirements" / "build.txt"
        build = make_environment(
            work / "build", "--no-deps", "--require-hashes", f"--requirement={lock}"
        )
        for compiled in ("0", "1"):
            arguments = ("-m", "build", "--no-isolation", "--outdir", str(work / "dist"), str(ROOT))
            run(build, *arguments, NEREID_COMPILE=compiled)
        for package in sorted((work / "dist").iterdir()):
            # The lock file is not used: a user who installs the package gets the newest versions
            # that it permits.
            python = make_environment(work / package.name, f"{package}[serve]")
            found = run(python, "-c", "import importlib.util as u; print(u.find_spec('services'))")
            if found.strip() != "None":
                sys.exit(f"{package.name} claims the top-level name 'services'")
            nereid = python.with_name("nereid")
            is_compiled = "(compiled)" in run(python, str(nereid), "--version")
            # A package from the sdist is compiled, if there is a compiler.
            if is_compiled == package.name.endswith("none-any.whl"):
                sys.exit(f"{package.name}: is_compiled={is_compiled}")
            serve(nereid, work)
            print(f"{package.name}: installed alone, `nereid serve` answered a request")


def make_environment(path: Path, *packages: str) -> Path:
    """Make a virtual environment, install the packages in it, and return its Python."""
    venv.create(path, with_pip=True)
    python = path / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *packages)
    return python


def run(python: Path, *arguments: str, **variables: str) -> str:
    """Run a command, and return its standard output."""
    done = subprocess.run(
        [str(python), *arguments],
        cwd="/",
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def serve(nereid: Path, work: Path) -> None:
    """Start `nereid serve` and send a request; exit if the response is wrong."""
    model = work / "models" / "echo"
    (model / "1").mkdir(parents=True, exist_ok=True)
    (model / "config.pbtxt").write_text(CONFIG)
    ports = ("--http-port=18000", "--grpc-port=18001", "--metrics-port=18002")
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    with subprocess.Popen(
        [str(nereid), "serve", f"--model-repository={model.parent}", *ports], cwd="/", env=environ
    ) as mesh:
        try:
            wait_until_ready(mesh)
            url = "http://127.0.0.1:18000/v2/models/echo/infer"
            with urllib.request.urlopen(url, REQUEST, timeout=10) as response:
                body = response.read()
            if b'"data":[1,2,3]' not in body:
                sys.exit(f"unexpected response: {body!r}")
        finally:
            mesh.terminate()


def wait_until_ready(mesh: subprocess.Popen[bytes]) -> None:
    """Wait until the mesh is ready; exit if it does not become ready."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and mesh.poll() is None:
        try:
            urllib.request.urlopen("http://127.0.0.1:18000/v2/health/ready", timeout=1).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
        else:
            return
    sys.exit("nereid serve did not become ready")


if __name__ == "__main__":
    main()
