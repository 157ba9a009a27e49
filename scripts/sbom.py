"""Writes a bill of materials (CycloneDX 1.6, JSON) for each image: build/sbom/NAME.cdx.json.

From the locked requirements, so it lists what is installed to the last hash. What the base image
brings is not in it. Runs cyclonedx-py, which stands beside this interpreter (make sbom).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "sbom"
# Lock files that images are made of, and `make serve`'s.
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
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        path = OUTPUT / f"{name}.cdx.json"
        command = [str(Path(sys.executable).with_name("cyclonedx-py")), "requirements"]
        command += [f"requirements/{name}.txt", "--pyproject=pyproject.toml"]
        command += ["--output-reproducible", f"--output-file={path}"]
        # It warns of a dependency graph that lock files do not have.
        environ = os.environ | {"PYTHONWARNINGS": "ignore"}
        subprocess.run(command, cwd=ROOT, env=environ, check=True)
        components = json.loads(path.read_text())["components"]
        unhashed = [each["name"] for each in components if not hashes_of(each)]
        if unhashed:
            sys.exit(f"{path}: without hashes: {', '.join(unhashed)}")
        print(f"{path.relative_to(ROOT)}: {len(components)} components")


def hashes_of(component: dict[str, list[dict[str, object]]]) -> list[object]:
    return [each["hashes"] for each in component.get("externalReferences", []) if "hashes" in each]


if __name__ == "__main__":
    main()
