"""Confines this process, then replaces it with the worker's interpreter.

It runs before the interpreter because that may be the model's own program. It is part of each load,
so it imports little: typing and json would take longer than all of its work.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import struct
import sys

from . import landlock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SET_NO_NEW_PRIVS, _SET_SECCOMP, _CAPBSET_DROP, _SET_SECUREBITS, _CAP_AMBIENT = 38, 22, 24, 28, 47
_CLEAR_ALL = 4
_FILTER = 2
# SECBIT_NOROOT, SECBIT_NO_SETUID_FIXUP, and their locks.
_SECUREBITS = 0xF
_CAPABILITY_VERSION = 0x20080522
_NEWNS, _NEWUSER, _NEWIPC = 0x20000, 0x10000000, 0x08000000
_NOSUID, _NODEV, _REC, _PRIVATE = 2, 4, 16384, 1 << 18
_MOUNT_SETATTR, _RECURSIVE = 442, 0x8000
# struct mount_attr with MOUNT_ATTR_RDONLY.
_READ_ONLY = struct.pack("<QQQQ", 1, 0, 0, 0)
_SHM = "/dev/shm"  # noqa: S108 - not a name in it
_HIGHEST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)


def main(descriptor: int) -> None:
    """Read `Confinement.policy` from a descriptor, confine the process, and execute the command.

    With an empty command, write what the kernel provides instead (marshal).
    """
    with os.fdopen(descriptor, "rb") as file:
        policy: dict[str, Any] = marshal.load(file)  # noqa: S302 - the executor wrote it
    provided = confine(policy)
    if policy["command"]:
        os.execv(policy["command"][0], policy["command"])  # noqa: S606 - it is no shell's text
    sys.stdout.buffer.write(marshal.dumps(provided))


def confine(policy: dict[str, Any]) -> dict[str, int]:
    """Confine this process as far as the kernel can; return what it provides."""
    is_private = _make_namespaces(policy["temporary"], policy["temporary_bytes"])
    os.chdir(policy["temporary"])
    counts = os.geteuid() != 0 or _uid_outside() != 0
    for name, limit in policy["limits"].items():
        # Without a namespace of its own, the processes of all workers and others would be counted.
        if name != "NPROC" or (is_private and counts):
            _set_limit(getattr(resource, f"RLIMIT_{name}"), limit)
    _drop_capabilities()
    _check(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    version = landlock.abi()
    if version:
        # Rules for files of /proc hold as long as the directory stays open.
        own = os.open("/proc/self", os.O_PATH)
        os.set_inheritable(own, True)
        shared = [(_SHM, landlock.WRITE if is_private else landlock.SHARED)]
        rules = [
            *((path, landlock.READ) for path in ("/proc/self/", *policy["read"])),
            *((path, landlock.DEVICE) for path in policy["devices"]),
            (policy["temporary"], landlock.WRITE),
            *shared,
        ]
        landlock.restrict(version, rules, network=policy["network"])
    has_filter = _set_filter(policy["filter"])
    return {
        "landlock": version,
        "seccomp": int(has_filter),
        "namespaces": int(is_private),
        "process_limit": int(is_private and counts),
    }


def _uid_outside() -> int:
    """Return the user's id outside of the namespaces; the kernel does not limit root's."""
    with open("/proc/self/uid_map", encoding="ascii") as file:  # noqa: PTH123 - imports take time
        return int(file.readline().split()[1])


def _make_namespaces(temporary: str, size_bytes: int) -> bool:
    """Give this process its own, bounded temporary files and shared memory, if the kernel can."""
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_NEWUSER | _NEWNS | _NEWIPC) < 0:
        return False
    try:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
                file.write(text)
        _check(_libc.mount(None, b"/", None, _REC | _PRIVATE, None))
        # Landlock does not cover modes, owners and times of files.
        _check(_libc.syscall(_MOUNT_SETATTR, -1, b"/", _RECURSIVE, _READ_ONLY, len(_READ_ONLY)))
        options = f"size={size_bytes},mode=700".encode()
        for path in (temporary, _SHM):
            flags = _NOSUID | _NODEV
            _check(_libc.mount(b"tmpfs", path.encode(), b"tmpfs", flags, options))
    except OSError:
        return False
    return True


def _set_limit(which: int, limit: int) -> None:
    _, most = resource.getrlimit(which)
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(which, (limit, limit))


def _drop_capabilities() -> None:
    # Without privileges there is nothing to drop, and the calls fail.
    _libc.prctl(_SET_SECUREBITS, _SECUREBITS, 0, 0, 0)
    for capability in range(_HIGHEST_CAPABILITY + 1):
        if _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break
    _libc.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    _check(_libc.capset(struct.pack("<Ii", _CAPABILITY_VERSION, 0), bytes(24)))


def _set_filter(program: bytes) -> bool:
    memory = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(memory))
    return bool(program) and bool(_libc.prctl(_SET_SECCOMP, _FILTER, header, 0, 0) == 0)


def _check(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
