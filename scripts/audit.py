"""Look up the locked versions of all dependencies in a database of vulnerabilities.

usage: audit.py [--service pypi|osv] [FILE ...]    (requirements/*.txt, as a whole by default)

The script exits with 1 if a version is known to be vulnerable. It exits with 2 if a version could
not be looked up, for example because the service cannot be reached: a version that was not audited
has not passed. The script runs pip-audit, which `make audit` installs beside this interpreter.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_SHOWN = 10


def main() -> None:
    """Audit the files, and exit with the largest exit code of any file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--service", choices=("pypi", "osv"), default="pypi")
    parser.add_argument("file", nargs="*", type=Path)
    given = parser.parse_args()
    files = given.file or sorted((ROOT / "requirements").glob("*.txt"))
    program = Path(sys.executable).with_name("pip-audit")
    sys.exit(max(audit(path, given.service, program) for path in files))


def audit(path: Path, service: str, program: Path) -> int:
    """Audit one file, print the findings, and return the exit code.

    program: path of pip-audit.
    """
    command = [str(program), f"--vulnerability-service={service}"]
    command += ["--require-hashes", "--disable-pip", "--progress-spinner=off", "--format=json"]
    done = subprocess.run(
        [*command, f"--requirement={path}"], capture_output=True, text=True, check=False
    )
    try:
        dependencies: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"{path.name}: NOT AUDITED: pip-audit ended with {done.returncode}: {reason}")
        return 2
    skipped = [dependency for dependency in dependencies if "skip_reason" in dependency]
    vulnerable = [dependency for dependency in dependencies if dependency.get("vulns")]
    for dependency in vulnerable:
        for found in dependency["vulns"]:
            fixed = ", ".join(found["fix_versions"]) or "none yet"
            print(
                f"{path.name}: {dependency['name']} {dependency['version']}: {found['id']},"
                f" fixed in: {fixed}"
            )
    for dependency in skipped[:_SHOWN]:
        print(f"{path.name}: NOT AUDITED: {dependency['name']}: {dependency['skip_reason']}")
    if len(skipped) > _SHOWN:
        print(f"{path.name}: NOT AUDITED: {len(skipped) - _SHOWN} more")
    audited = len(dependencies) - len(skipped)
    print(f"{path.name}: {audited} of {len(dependencies)} audited, {len(vulnerable)} vulnerable")
    if skipped or not dependencies:
        return 2
    return 1 if vulnerable else 0


if __name__ == "__main__":
    main()
