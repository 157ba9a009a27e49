"""Restricts this process and its children to some files by Landlock; see landlock(7)."""

from __future__ import annotations

import ctypes
import os
import stat
import struct

# The launcher is part of each load, and typing takes milliseconds to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# The numbers are the same on x86_64 and aarch64.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
READ = _EXECUTE | _READ_FILE | _READ_DIR
# All but making of device files.
WRITE = READ | _WRITE_FILE | _TRUNCATE | 0x37B0
DEVICE = _READ_FILE | _READ_DIR | _WRITE_FILE | _IOCTL
# Objects of POSIX shared memory in a directory that others use as well: no list of names.
SHARED = _READ_FILE | _WRITE_FILE | _TRUNCATE | 0x120
_ALL_BY_ABI = (0, 0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF)
_TCP = 3
_SCOPES = 3
_NET_ABI, SCOPE_ABI = 4, 6

_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """Return the kernel's version of Landlock; 0 without Landlock."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, 0, _VERSION)))


def handled_rights(version: int) -> tuple[int, int, int]:
    """Return the rights that a version can refuse: on files, on TCP, and the scopes."""
    files = _ALL_BY_ABI[min(version, len(_ALL_BY_ABI) - 1)]
    return files, _TCP if version >= _NET_ABI else 0, _SCOPES if version >= SCOPE_ABI else 0


def restrict(version: int, rules: Iterable[tuple[str, int]], *, network: bool) -> None:
    """Allow the rights beneath each path that exists, and no others. Raise OSError on failure.

    no_new_privs has to be set. Signals and abstract sockets reach only the process's own children.
    """
    files, tcp, scopes = handled_rights(version)
    attributes = struct.pack("<QQQ", files, 0 if network else tcp, scopes)
    # Kernels refuse sizes with bits that they do not know.
    size = 8 if version < _NET_ABI else 16 if version < SCOPE_ABI else 24
    ruleset = _call(_CREATE_RULESET, attributes, size, 0)
    for path, rights in rules:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        allowed = rights & files & (-1 if is_directory else _FILE_RIGHTS)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("<Qi", allowed, descriptor), 0)
        os.close(descriptor)
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
