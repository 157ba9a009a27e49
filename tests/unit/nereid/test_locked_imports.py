"""Each service imports only what its image installs.

The development environment has the packages of all services, so that an import from another one's
fails in nobody's hands but the users'.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]
# Imports every module of a package while the distributions that are not named are hidden. Prints
# what could not be found and which module asked for it.
_PROGRAM = """
import importlib, importlib.metadata, pkgutil, re, sys

package, *names = sys.argv[1:]
plain = lambda name: re.sub("[-_.]+", "-", name).lower()
hidden = {
    top
    for top, owners in importlib.metadata.packages_distributions().items()
    if not {plain(owner) for owner in owners} & {*names, "nereid-mesh"}
}

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
root = importlib.import_module(package)
for found in pkgutil.walk_packages(root.__path__, f"{package}."):
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        print(error.name, found.name)
"""
# Backends' packages, each installed where it is wanted; and the module that Python models find in
# their own processes only.
_NOT_IN_IMAGES = {"nereid_worker", "openvino", "pynvml", "tensorrt", "torch"}


def _locked(service: str) -> list[str]:
    lines = (_ROOT / "requirements" / f"{service}.txt").read_text().splitlines()
    return [line.partition("==")[0] for line in lines if "==" in line and line[0] not in " #"]


@pytest.mark.parametrize("service", ["cache", "executor", "gateway", "scheduler"])
def test_a_service_imports_only_what_its_image_installs(service: str) -> None:
    command = [sys.executable, "-c", _PROGRAM, f"nereid_{service}", *_locked(service)]
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
    missing = [line.split() for line in done.stdout.splitlines()]
    assert [each for each in missing if each[0] not in _NOT_IN_IMAGES] == []
