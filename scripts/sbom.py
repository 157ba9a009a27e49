"""Write a bill of materials (CycloneDX 1.6, JSON) for each image: build/sbom/NAME.cdx.json.

usage: sbom.py                  writes the bills
       sbom.py add BILL IMAGE   adds Python, and Debian's packages of which the image has files

A bill is made from the locked requirements, so it lists exactly what is installed, with hashes. The
script runs cyclonedx-py, which `make sbom` installs beside this interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

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
# Prints in an image what components_of() reads.
CONTENTS = """
import json, platform
release = platform.freedesktop_os_release()
status = open("/var/lib/dpkg/status").read()
print(json.dumps([platform.python_version(), release["ID"], release["VERSION_ID"], status]))
"""


def main() -> None:
    """Write the bills of all images, or add an image's contents to one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command")
    adding = commands.add_parser("add")
    adding.add_argument("bill", type=Path)
    adding.add_argument("image")
    given = parser.parse_args()
    if given.command == "add":
        add(given.bill, given.image)
    else:
        write_bills()


def components_of(printed: str) -> list[dict[str, str]]:
    """Return the components of an image that were not installed from the locked requirements.

    printed: what CONTENTS printed there.
    """
    python, distribution, release, status = json.loads(printed)
    found = [("python", python, f"pkg:generic/python@{python}")]
    for record in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in record.splitlines() if ": " in line)
        if fields.get("Status") == "install ok installed":
            name, version = fields["Package"], fields["Version"]
            where = f"{distribution}/{quote(name)}@{quote(version, safe='')}"
            what = f"arch={fields['Architecture']}&distro={distribution}-{release}"
            found.append((name, version, f"pkg:deb/{where}?{what}"))
    return [
        {"bom-ref": url, "name": name, "purl": url, "type": "library", "version": version}
        for name, version, url in sorted(found)
    ]


def add(bill: Path, image: str) -> None:
    """Add an image's components to its bill."""
    command = ["docker", "run", "--rm", "--network=none", "--entrypoint=python", image]
    done = subprocess.run([*command, "-c", CONTENTS], stdout=subprocess.PIPE, text=True, check=True)
    content = json.loads(bill.read_text())
    components = {each["bom-ref"]: each for each in content["components"]}
    components |= {each["bom-ref"]: each for each in components_of(done.stdout)}
    content["components"] = list(components.values())
    bill.write_text(json.dumps(content, indent=2) + "\n")
    print(f"{bill}: {len(components)} components")


def write_bills() -> None:
    """Write the bills of what is locked for all images."""
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
