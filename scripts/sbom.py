"""Write a bill of materials (CycloneDX 1.6, JSON) for each image: build/sbom/NAME.cdx.json.

A bill is made from the locked requirements, so it lists exactly what is installed, with hashes. It
does not list the contents of the base image. The script runs cyclonedx-py, which `make sbom`
installs beside this interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "sbom"
# Lock files that images are made of, and that of `make serve`.
NAMES = (
    "gateway",
    "scheduler",
    "cache",
    "executor",
    "executor-gpu",
    "serve",
    "serve-image",
    "serve-image-gpu",
)


def main() -> None:
    """Write the bills of all images."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        path = OUTPUT / f"{name}.cdx.json"
        command = [str(Path(sys.executable).with_name("cyclonedx-py")), "requirements"]
        command += [f"requirements/{name}.txt", "--pyproject=pyproject.toml"]
        command += ["--output-reproducible", f"--output-file={path}"]
        # The tool warns of a dependency graph that lock files do not have.
        environ = os.environ | {"PYTHONWARNINGS": "ignore"}
        subprocess.run(command, cwd=ROOT, env=environ, check=True)
        components = json.loads(path.read_text())["components"]
        unhashed = [component["name"] for component in components if not hashes_of(component)]
        if unhashed:
            sys.exit(f"{path}: without hashes: {', '.join(unhashed)}")
        print(f"{path.relative_to(ROOT)}: {len(components)} components")


def hashes_of(component: dict[str, list[dict[str, object]]]) -> list[object]:
    """Return the hashes of a component."""
    return [
        reference["hashes"]
        for reference in component.get("externalReferences", [])
        if "hashes" in reference
    ]


if __name__ == "__main__":
    main()
