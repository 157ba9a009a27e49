"""The root directory that all containers have: what deploy/Dockerfile's images have of use, mounted
from this machine, and the files by which the kubelet makes names known.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.source_tree import source_path
from tests.support.chart.rendering import NAMESPACE, ROOT

# As Dockerfiles' ENV have it; a process has no other variables than these and its pod's.
ENVIRONMENT: Final = {
    "PATH": "/opt/nereid/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    # Stands for the installed wheel.
    "PYTHONPATH": source_path(ROOT),
}
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/sys")
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_DOCKERFILE: Final = (ROOT / "deploy/Dockerfile").read_text()


class Mount(NamedTuple):
    """A directory or a file of this machine, and where a container has it."""

    source: Path
    path: str
    read_only: bool = True


def entrypoint(image: str) -> list[str]:
    """Of an image of deploy/Dockerfile, by its name in the chart."""
    (target,) = re.findall(r"nereid-([\w-]+)[:@][^/]+$", image)
    stage = _DOCKERFILE.partition(f" AS {target}\n")[2].partition("\nFROM ")[0]
    (words,) = re.findall(r"^ENTRYPOINT (.*)$", stage, re.MULTILINE)
    found: list[str] = json.loads(words)
    return found


class Image:
    """The root directory: mounts are each container's own, on places that all have."""

    def __init__(self, root: Path, name_server: str) -> None:
        self._root = root
        for folder in ("etc", "dev/shm", "proc", "opt/nereid/bin", "tmp", "run"):
            (root / folder).mkdir(parents=True)
        for name in _DEVICES:
            (root / "dev" / name).touch()
        etc = {
            "passwd": "root:x:0:0::/:/bin/sh\n",
            "group": "root:x:0:\n",
            "nsswitch.conf": "hosts: files dns\n",
            "hosts": "127.0.0.1 localhost\n",
            "resolv.conf": f"nameserver {name_server}\n"
            f"search {NAMESPACE}.svc.cluster.local svc.cluster.local cluster.local\n"
            "options ndots:5\n",
        }
        for name, text in etc.items():
            (root / "etc" / name).write_text(text)
        for name in ("ld.so.cache", "ssl"):
            shared = Path("/etc", name)
            place = root / "etc" / name
            place.mkdir() if shared.is_dir() else place.touch()
        python = shlex.quote(sys.executable)
        programs = {
            "python": f'#!/bin/sh\nexec {python} "$@"\n',
            "nereid": f'#!/bin/sh\nexec {python} -c "from nereid.cli import main; main()" "$@"\n',
        }
        for name, text in programs.items():
            program = root / "opt/nereid/bin" / name
            program.write_text(text)
            program.chmod(0o755)

    def script(self, hostname: str, volumes: Iterable[Mount]) -> str:
        """For sh, in namespaces of the container's own: mount all, and run "$@" in it."""
        # As container runtimes do; a volume may be mounted over it.
        shared_memory = shlex.quote(f"{self._root}/dev/shm")
        lines = [
            f"hostname {shlex.quote(hostname)}",
            f"mount -t tmpfs -o size=64m,mode=1777 tmpfs {shared_memory}",
        ]
        mounts = [*sorted(volumes, key=lambda each: len(each.path)), *_mounts_of_all()]
        for each in mounts:
            place = shlex.quote(f"{self._root}{each.path}")
            source = shlex.quote(str(each.source))
            if each.source.is_dir():
                lines.append(f"mkdir -p {place}")
            lines.append(f"mount -o {'bind,ro' if each.read_only else 'bind'} {source} {place}")
        lines.append(f"mount -t proc proc {shlex.quote(f'{self._root}/proc')}")
        return "\n".join([*lines, f'exec chroot {shlex.quote(str(self._root))} "$@"'])


def _mounts_of_all() -> Iterator[Mount]:
    for path in (*_SYSTEM, "/etc/ld.so.cache", "/etc/ssl"):
        if Path(path).exists():
            yield Mount(Path(path), path)
    for name in _DEVICES:
        yield Mount(Path("/dev", name), f"/dev/{name}", read_only=False)
    for each in _code():
        yield Mount(each, str(each))


def _code() -> list[Path]:
    """Where this interpreter has its modules: none inside another, and none inside /usr."""
    named = [ROOT, *map(Path, (sys.prefix, sys.base_prefix, *filter(None, sys.path)))]
    found = {each for name in named for each in (name, name.resolve()) if each.is_dir()}
    return sorted(
        each
        for each in found
        if not any(parent in found or parent == Path("/usr") for parent in each.parents)
    )
