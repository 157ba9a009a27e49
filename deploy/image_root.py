"""Copies what images need of a Debian image: image_root.py DIRECTORY [PROGRAM ...].

Python with its standard library, the C and C++ libraries that wheels may expect (manylinux),
certificates and time zones, and the programs that are named. dpkg's records of the packages and
their licences come along, so that scanners of images see what there is. There is no shell unless it
is named, and no pip, apt, compiler or documentation.

The result depends on the Debian image alone: all times are set to EPOCH.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# ctypes.util.find_library runs ldconfig.
PROGRAMS = ("python", "python3", "ldconfig")
# Beside those that the programs are linked with.
LIBRARIES = (
    *("libanl.so.1", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libmvec.so.1", "libnss_dns.so.2"),
    *("libnss_files.so.2", "libpthread.so.0", "libresolv.so.2", "librt.so.1", "libstdc++.so.6"),
    *("libutil.so.1", "libz.so.1"),
)
FILES = ("passwd", "group", "nsswitch.conf", "os-release", "debian_version", "ld.so.conf")
DIRECTORIES = (
    *("/etc/ld.so.conf.d", "/etc/ssl", "/usr/lib/ssl", "/usr/lib/locale/C.utf8"),
    *("/usr/share/ca-certificates", "/usr/local/share/ca-certificates", "/usr/share/zoneinfo"),
)
# Parts of the standard library: tests, tkinter, help(), and what compiles or installs.
UNUSED = (
    *("__pycache__", "config-*", "dist-packages", "ensurepip", "idlelib", "idle_test", "lib2to3"),
    *("pydoc_data", "site-packages", "test", "tests", "tkinter", "turtle.py", "turtledemo"),
)
# 1980-01-02: archives in ZIP's format know no earlier time.
EPOCH = 315_619_200
_DPKG = Path("/var/lib/dpkg")
_LDCONFIG = "/sbin/ldconfig"
_LINKED = re.compile(r"(/\S+) \(0x")
_CACHED = re.compile(r"^\s*(\S+) \(.*\) => (\S+)$", re.MULTILINE)


class ImageRoot:
    """A directory that becomes an image's root."""

    def __init__(self, root: Path) -> None:
        """Create it, with the links of Debian's merged /usr."""
        self._root = root
        for name in (
            *("dev", "etc", "home", "opt/nereid", "proc", "root", "run", "sys", "tmp", "usr"),
            *("var/cache/nereid", "var/tmp"),
        ):
            (root / name).mkdir(parents=True)
        for name in ("tmp", "var/tmp"):
            (root / name).chmod(0o1777)
        for name in ("bin", "lib", "lib64", "sbin"):
            link = Path("/", name)
            if link.is_symlink():
                (root / name).symlink_to(link.readlink())

    def add(self, path: Path) -> None:
        """Copy a file, with the links on the way to it."""
        place = self._place_of(path)
        if place.is_symlink() or place.exists():
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place, follow_symlinks=False)
        if path.is_symlink():
            self.add(path.parent / path.readlink())

    def add_linked(self, path: Path) -> None:
        """Copy a program or library, with all libraries that it is linked with."""
        self.add(path)
        shown = subprocess.run(
            ["/usr/bin/ldd", str(path)], capture_output=True, text=True, check=False
        )
        for found in _LINKED.findall(shown.stdout):
            self.add(Path(found))

    def add_directory(self, directory: Path) -> None:
        """Copy a directory."""
        shutil.copytree(directory, self._root / directory.relative_to("/"), symlinks=True)

    def add_standard_library(self) -> None:
        """Copy what can be imported without packages, compiled, as images write no bytecode."""
        source = Path(sysconfig.get_path("stdlib"))
        place = self._root / source.relative_to("/")
        shutil.copytree(source, place, ignore=shutil.ignore_patterns(*UNUSED))
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        # By one process, whose bytecode depends on nothing that runs beside it.
        if not compileall.compile_dir(
            place, quiet=1, workers=1, stripdir=str(self._root), invalidation_mode=unchecked
        ):
            sys.exit(f"{place} cannot be compiled")
        for library in source.glob("lib-dynload/*.so"):
            self.add_linked(library)

    def add_loader_cache(self) -> None:
        """Write what the loader and ldconfig know of the libraries."""
        subprocess.run([_LDCONFIG, "-r", str(self._root)], check=True)
        # Has inodes and times.
        shutil.rmtree(self._root / "var/cache/ldconfig", ignore_errors=True)

    def set_times(self) -> None:
        """Set all times to EPOCH."""
        for path in (self._root, *self._root.rglob("*")):
            os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)

    def add_package_records(self) -> None:
        """Copy dpkg's records, and the licences, of the packages that something was copied of."""
        owners = set(self._owners())
        records = [
            record
            for record in (_DPKG / "status").read_text().split("\n\n")
            if record.partition("\n")[0].removeprefix("Package: ") in owners
        ]
        (self._root / "var/lib/dpkg").mkdir(parents=True)
        (self._root / "var/lib/dpkg/status").write_text("\n\n".join(records) + "\n\n")
        for owner in owners:
            licence = Path("/usr/share/doc", owner, "copyright")
            if licence.exists():
                self.add(licence)

    def _place_of(self, path: Path) -> Path:
        return self._root / path.parent.resolve().relative_to("/") / path.name

    def _owners(self) -> Iterator[str]:
        for listing in _DPKG.glob("info/*.list"):
            for line in listing.read_text().splitlines():
                # /bin and the like are directories of many packages, and links here.
                place = self._place_of(Path(line))
                if not Path(line).is_dir() and (place.is_symlink() or place.is_file()):
                    yield listing.stem.partition(":")[0]
                    break


def main() -> None:
    """Fill the directory."""
    root = ImageRoot(Path(sys.argv[1]))
    for name in (*PROGRAMS, *sys.argv[2:]):
        found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        if found is None:
            sys.exit(f"the image has no {name}")
        root.add_linked(Path(found))
    cached = _CACHED.findall(subprocess.check_output([_LDCONFIG, "-p"], text=True))
    for name, path in cached:
        if name in LIBRARIES:
            root.add_linked(Path(path))
    root.add_standard_library()
    for file in (Path("/etc", name) for name in FILES):
        if file.exists():
            root.add(file)
    for directory in map(Path, DIRECTORIES):
        if directory.is_dir():
            root.add_directory(directory)
    root.add_package_records()
    root.add_loader_cache()
    root.set_times()


if __name__ == "__main__":
    main()
