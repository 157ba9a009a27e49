"""Confines this process, then replaces it with the worker's interpreter.

It runs before the interpreter because that may be the model's own program. It is part of each load,
so it imports little: typing, json and pathlib would take longer than all of its work.
"""

# ruff: noqa: PTH101, PTH103, PTH110, PTH112, PTH114, PTH115, PTH120, PTH123, PTH211

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
    from collections.abc import Iterable
    from typing import Any

_SET_NO_NEW_PRIVS, _CAPBSET_DROP, _SET_SECUREBITS, _CAP_AMBIENT = 38, 24, 28, 47
_CLEAR_ALL = 4
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_FILTER, _SPEC_ALLOW = 1, 4
# SECBIT_NOROOT, SECBIT_NO_SETUID_FIXUP, and their locks.
_SECUREBITS = 0xF
_CAPABILITY_VERSION = 0x20080522
_NEWNS, _NEWUSER, _NEWIPC, _NEWNET = 0x20000, 0x10000000, 0x08000000, 0x40000000
_NOSUID, _NODEV, _BIND, _REC, _PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MOUNT_SETATTR, _RECURSIVE = 442, 0x8000
# struct mount_attr with MOUNT_ATTR_RDONLY.
_READ_ONLY = struct.pack("<QQQQ", 1, 0, 0, 0)
_TMP, _SHM = "/tmp", "/dev/shm"  # noqa: S108 - not names in them
_STANDARD_STREAMS = ("/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr")
# Most architectures share the second number.
_PIVOT_ROOT = 155 if os.uname().machine == "x86_64" else 41
_DETACH = 2
# As the kernel.
_MAX_LINKS = 40
# An inode takes memory of the kernel, also that of an empty file.
_BYTES_PER_INODE, _MIN_INODES, _MAX_ROOT_INODES = 16384, 1024, 4096
# A thousandth of the memory that counts: without memory, the kernel ends workers, not executors.
_OOM_SCORE, _MAX_OOM_SCORE = 500, 1000
_HIGHEST_CAPABILITY = 63
# No user has this number; it is among the 65,536 of a container's.
_COUNTED_USER = 65432

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
    _raise_oom_score()
    is_root = os.geteuid() == 0
    is_counted = is_root and not any(name.startswith("LD_") for name in os.environ)
    is_private = _make_namespaces(policy, is_counted)
    os.chdir(policy["temporary"])
    counts = is_private and (not is_root or os.getuid() != 0 or _uid_outside() != 0)
    for name, limit in policy["limits"].items():
        # Without a namespace of its own, the processes of all workers and others would be counted.
        if name != "NPROC" or counts:
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
            *((path, landlock.WRITE) for path in (policy["temporary"], _TMP)[: 1 + is_private]),
            *shared,
        ]
        landlock.restrict(version, rules, network=policy["network"])
    # Landlock does not cover connect() to a path, but the root has no sockets of others. It keeps
    # connections that the process was given from being directed elsewhere.
    has_unix_sockets = is_private and version >= landlock.SCOPE_ABI
    has_filter = _set_filter(policy["unix_filter" if has_unix_sockets else "filter"])
    return {
        "landlock": version,
        "seccomp": int(has_filter),
        "namespaces": int(is_private),
        "process_limit": int(counts),
    }


def _raise_oom_score() -> None:
    path = "/proc/self/oom_score_adj"
    try:
        with open(path, encoding="ascii") as file:
            score = int(file.read())
        _write(path, str(min(score + _OOM_SCORE, _MAX_OOM_SCORE)))
    except OSError:
        # Some containers do not allow it.
        pass


def _uid_outside() -> int:
    """Return the user's id outside of the namespaces; the kernel does not limit root's."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return int(file.readline().split()[1])


def _make_namespaces(policy: dict[str, Any], is_counted: bool) -> bool:
    """Give this process its own, bounded temporary files and shared memory, if the kernel can.

    is_counted: let another real user be root's. The kernel counts processes by it, and bounds all
    but root's; files are for the effective user. The loader ignores its variables then.
    """
    user, group = os.geteuid(), os.getegid()
    mapped = [f"{user} {user} 1", f"{_COUNTED_USER} {_COUNTED_USER} 1"]
    # Only a process outside may map other users than its own.
    mapper = _Mapper(mapped) if is_counted else None
    namespaces = _NEWUSER | _NEWNS | _NEWIPC
    # Its own network has no list of others' connections (/proc/self/net).
    with_network = namespaces if policy["network"] else namespaces | _NEWNET
    has_namespaces = _libc.unshare(with_network) == 0 or _libc.unshare(namespaces) == 0
    is_mapped = mapper is not None and mapper.write()
    if not has_namespaces:
        return False
    try:
        _write("/proc/self/setgroups", "deny")
        if is_mapped:
            os.setresuid(_COUNTED_USER, -1, -1)
        else:
            _write("/proc/self/uid_map", mapped[0])
        _write("/proc/self/gid_map", f"{group} {group} 1")
        _check(_libc.mount(None, b"/", None, _REC | _PRIVATE, None))
        # Landlock does not cover modes, owners and times of files.
        _set_read_only(_RECURSIVE)
        _make_root(policy)
        if is_mapped:
            # access() asks for the real user, whom no file belongs to. Nobody else sees those that
            # this process makes.
            os.umask(0)
    except OSError:
        return False
    return True


def _make_root(policy: dict[str, Any]) -> None:
    """Give this process a root directory that has the files of its policy alone.

    Landlock keeps nobody from asking whether a file exists and for its size, or from connecting to
    a Unix socket.
    """
    # Targets of links, by path. A directory has an empty target.
    links: dict[str, str] = {}
    paths = (*policy["read"], *policy["devices"], *policy["command"][:1], "/proc")
    found = {_resolved(path, links) for path in paths}
    for path in _STANDARD_STREAMS:
        if os.path.islink(path):
            links[path] = os.readlink(path)
    # The new root hides /tmp, in which some of them may lie.
    opened = {
        path: os.open(path, os.O_PATH | os.O_CLOEXEC)
        for path in found.difference((_TMP, _SHM))
        if os.path.exists(path)
    }
    _mount_temporary(_TMP, f"nr_inodes={_MAX_ROOT_INODES},mode=755")
    try:
        _fill_root(policy, opened, links)
        os.chdir(_TMP)
        # The old root lies above the new one then.
        _check(_libc.syscall(_PIVOT_ROOT, b".", b"."))
    except OSError:
        _libc.umount2(_TMP.encode(), _DETACH)
        raise
    finally:
        # A forked process executes no other program, which would close them.
        for descriptor in opened.values():
            os.close(descriptor)
    _check(_libc.umount2(b".", _DETACH))
    os.chdir("/")
    _set_read_only(0)


def _fill_root(policy: dict[str, Any], opened: dict[str, int], links: dict[str, str]) -> None:
    """Mount the opened paths and temporary directories in the new root, which is at /tmp."""
    size = policy["temporary_bytes"]
    options = f"size={size},nr_inodes={max(size // _BYTES_PER_INODE, _MIN_INODES)},mode=777"
    # By path, whether an opened path is bound there; False for a temporary file system.
    mounted: dict[str, bool] = {}
    for path in sorted((*opened, _TMP, _SHM)):
        if path not in opened:
            os.makedirs(_TMP + path, exist_ok=True)
            _mount_temporary(_TMP + path, options)
            mounted[path] = False
        elif not mounted.get(_mount_of(path, mounted), False):
            _bind(f"/proc/self/fd/{opened[path]}", _TMP + path)
            mounted[path] = True
    bound = [path for path, is_bound in mounted.items() if is_bound]
    _make_links(
        {
            path: target
            for path, target in links.items()
            if not any(_is_beneath(path, each) for each in bound)
        }
    )
    temporary = policy["temporary"]
    os.makedirs(_TMP + temporary, exist_ok=True)
    if _mount_of(temporary, mounted) == _TMP:
        os.chmod(_TMP + temporary, 0o777)  # noqa: S103 - nobody else sees it
    else:
        _bind(_TMP + _TMP, _TMP + temporary)


def _make_links(links: dict[str, str]) -> None:
    for path, target in links.items():
        if not target:
            os.makedirs(_TMP + path, exist_ok=True)
        elif not os.path.lexists(_TMP + path):
            os.makedirs(os.path.dirname(_TMP + path), exist_ok=True)
            os.symlink(target, _TMP + path)


def _resolved(path: str, links: dict[str, str]) -> str:
    """Return a path without links, and add those that lead to it, and directories before '..'."""
    parts = path.split("/")[::-1]
    resolved = ""
    followed = 0
    while parts:
        part = parts.pop()
        if part in ("", "."):
            continue
        if part == "..":
            links.setdefault(resolved or "/", "")
            resolved = os.path.dirname(resolved).rstrip("/")
            continue
        at = f"{resolved}/{part}"
        if followed == _MAX_LINKS or not os.path.islink(at):
            resolved = at
            continue
        followed += 1
        links[at] = target = os.readlink(at)
        parts += target.split("/")[::-1]
        if target.startswith("/"):
            resolved = ""
    return resolved or "/"


def _mount_of(path: str, mounted: Iterable[str]) -> str:
    return max((each for each in mounted if _is_beneath(path, each)), key=len, default="")


def _is_beneath(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def _mount_temporary(path: str, options: str) -> None:
    flags = _NOSUID | _NODEV
    _check(_libc.mount(b"tmpfs", path.encode(), b"tmpfs", flags, options.encode()))


def _set_read_only(flags: int) -> None:
    _check(_libc.syscall(_MOUNT_SETATTR, -1, b"/", flags, _READ_ONLY, len(_READ_ONLY)))


def _bind(source: str, path: str) -> None:
    if not os.path.exists(path):
        if os.path.isdir(source):
            os.makedirs(path)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC))
    _check(_libc.mount(source.encode(), path.encode(), None, _BIND | _REC, None))


class _Mapper:
    """A process that maps the users of this process's namespace, from outside of it."""

    def __init__(self, lines: list[str]) -> None:
        parent = os.getpid()
        reader, self._begin = os.pipe()
        self._child = os.fork()
        if self._child:
            os.close(reader)
            return
        status = 1
        try:
            os.close(self._begin)
            if os.read(reader, 1):
                _write(f"/proc/{parent}/uid_map", "\n".join(lines))
                status = 0
        finally:
            os._exit(status)

    def write(self) -> bool:
        """Return whether the users were mapped."""
        os.write(self._begin, b"1")
        os.close(self._begin)
        return os.waitpid(self._child, 0)[1] == 0


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _set_limit(which: int, limit: int) -> None:
    _, most = resource.getrlimit(which)
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    # The signal of the lower limit on CPU time says why a process ends; the other is SIGKILL.
    hard = limit + 1 if which == resource.RLIMIT_CPU and limit != most else limit
    resource.setrlimit(which, (limit, hard))


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
    number = _SECCOMP.get(os.uname().machine)
    # Without the flag, kernels before 5.16 slow down all code of filtered processes, to keep a
    # process's memory from its own code.
    return bool(program) and any(
        _libc.syscall(number, _SET_FILTER, flags, header) == 0 for flags in (_SPEC_ALLOW, 0)
    )


def _check(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
