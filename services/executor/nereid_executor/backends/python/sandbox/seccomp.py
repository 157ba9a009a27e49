"""Builds the seccomp filter of a confined process: a short list of refused system calls."""

from __future__ import annotations

import errno
import struct
from typing import Final, NamedTuple

# Values from linux/audit.h.
AUDIT_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT: Final = 0x40000000

_ALLOW: Final = 0x7FFF0000
_KILL_PROCESS: Final = 0x80000000
_ERRNO: Final = 0x00050000

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_OR_EQUAL, _JUMP_SET, _AND, _RETURN = (
    0x20, 0x15, 0x35, 0x45, 0x54, 0x06,
)  # fmt: skip
# Offsets in struct seccomp_data: number, architecture, then arguments of 64 bits, low word first.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

_UNIX, _INET, _INET6 = 1, 2, 10
_SOCKET_TYPE_MASK, _DATAGRAM = 0xF, 2
# A parent that does not know of a child does not wait for it.
_CLONE_PARENT: Final = 0x8000
# CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. The lowest bit of
# CLONE_NEWTIME belongs to clone()'s exit signal, and clone() ignores it.
_NAMESPACES: Final = 0x7E020000


class SystemCall(NamedTuple):
    """Numbers of one system call; `None` where the architecture lacks it."""

    x86_64: int | None
    aarch64: int | None


REFUSED: Final = {
    # Other processes.
    "ptrace": SystemCall(101, 117),
    "process_vm_readv": SystemCall(310, 270),
    "process_vm_writev": SystemCall(311, 271),
    "process_madvise": SystemCall(440, 440),
    "pidfd_getfd": SystemCall(438, 438),
    "kcmp": SystemCall(312, 272),
    "ioprio_set": SystemCall(251, 30),
    # The limit on processes does not hold for root as the real user.
    "setuid": SystemCall(105, 146),
    "setreuid": SystemCall(113, 145),
    "setresuid": SystemCall(117, 147),
    # Mounts and namespaces.
    "mount": SystemCall(165, 40),
    "umount2": SystemCall(166, 39),
    "pivot_root": SystemCall(155, 41),
    "chroot": SystemCall(161, 51),
    "open_tree": SystemCall(428, 428),
    "move_mount": SystemCall(429, 429),
    "fsopen": SystemCall(430, 430),
    "fsconfig": SystemCall(431, 431),
    "fsmount": SystemCall(432, 432),
    "fspick": SystemCall(433, 433),
    "mount_setattr": SystemCall(442, 442),
    "unshare": SystemCall(272, 97),
    "setns": SystemCall(308, 268),
    # Files by other ways than their paths.
    "name_to_handle_at": SystemCall(303, 264),
    "open_by_handle_at": SystemCall(304, 265),
    "fanotify_init": SystemCall(300, 262),
    # Landlock lets any directory be watched, which tells the names of files that others open.
    "inotify_init": SystemCall(253, None),
    "inotify_init1": SystemCall(294, 26),
    # Keys, and objects that all processes of a user share by number.
    "add_key": SystemCall(248, 217),
    "request_key": SystemCall(249, 218),
    "keyctl": SystemCall(250, 219),
    "shmget": SystemCall(29, 194),
    "shmat": SystemCall(30, 196),
    "shmctl": SystemCall(31, 195),
    "semget": SystemCall(64, 190),
    "semop": SystemCall(65, 193),
    "semctl": SystemCall(66, 191),
    "semtimedop": SystemCall(220, 192),
    "msgget": SystemCall(68, 186),
    "msgsnd": SystemCall(69, 189),
    "msgrcv": SystemCall(70, 188),
    "msgctl": SystemCall(71, 187),
    "mq_open": SystemCall(240, 180),
    "mq_unlink": SystemCall(241, 181),
    # Interfaces of the kernel with a large surface.
    "userfaultfd": SystemCall(323, 282),
    "bpf": SystemCall(321, 280),
    "perf_event_open": SystemCall(298, 241),
    "io_uring_setup": SystemCall(425, 425),
    "io_uring_enter": SystemCall(426, 426),
    "io_uring_register": SystemCall(427, 427),
    # The machine.
    "kexec_load": SystemCall(246, 104),
    "kexec_file_load": SystemCall(320, 294),
    "init_module": SystemCall(175, 105),
    "finit_module": SystemCall(313, 273),
    "delete_module": SystemCall(176, 106),
    "reboot": SystemCall(169, 142),
    "swapon": SystemCall(167, 224),
    "swapoff": SystemCall(168, 225),
    "acct": SystemCall(163, 89),
    "quotactl": SystemCall(179, 60),
    "quotactl_fd": SystemCall(443, 443),
    "syslog": SystemCall(103, 116),
    "sethostname": SystemCall(170, 161),
    "setdomainname": SystemCall(171, 162),
    "settimeofday": SystemCall(164, 170),
    "clock_settime": SystemCall(227, 112),
    "clock_adjtime": SystemCall(305, 266),
    "adjtimex": SystemCall(159, 171),
    "vhangup": SystemCall(153, 58),
    "iopl": SystemCall(172, None),
    "ioperm": SystemCall(173, None),
    "modify_ldt": SystemCall(154, None),
}
# Succeed without effect: a process that leaves the worker's group would not be killed with it.
# subprocess.Popen(start_new_session=True) would fail if they were refused.
IGNORED: Final = {
    "setsid": SystemCall(112, 157),
    "setpgid": SystemCall(109, 154),
}
# Allowed only for the calling process or thread: the argument of this index has to be 0.
OWN_ONLY: Final = {
    "prlimit64": (SystemCall(302, 261), 0),
    "sched_setaffinity": (SystemCall(203, 122), 0),
    "sched_setattr": (SystemCall(314, 274), 0),
    "sched_setparam": (SystemCall(142, 118), 0),
    "sched_setscheduler": (SystemCall(144, 119), 0),
}
# The first number that this list was not checked for: open_tree_attr().
_UNCHECKED: Final = 467
# Others who open a file wait up to 45 s for its lease. Notifications are those of inotify. Later
# commands than F_SET_FILE_RW_HINT were not checked; they have leases, too (F_SETDELEG).
_F_SETLEASE, _F_NOTIFY, _UNCHECKED_COMMAND = 1024, 1026, 1039
_FCNTL: Final = SystemCall(72, 25)
_SETPRIORITY: Final = SystemCall(141, 140)
_SOCKET: Final = SystemCall(41, 198)
_SOCKETPAIR: Final = SystemCall(53, 199)
_CONNECT: Final = SystemCall(42, 203)
_BIND: Final = SystemCall(49, 200)
_SETSOCKOPT: Final = SystemCall(54, 208)
_SOL_SOCKET, _SO_REUSEPORT = 1, 15
_CLONE: Final = SystemCall(56, 220)
_CLONE3: Final = SystemCall(435, 435)


def build_filter(machine: str, *, network: bool, unix: bool) -> bytes:
    """Return the BPF program (array of struct sock_filter) for a machine of os.uname().

    network: allow sockets of IPv4 and IPv6. unix: allow Unix sockets. Raises ValueError for an
    unknown machine.
    """
    if machine not in AUDIT_ARCHITECTURES:
        raise ValueError(f"no seccomp filter for {machine}")
    arm = machine == "aarch64"
    refuse = _statement(_RETURN, _ERRNO | errno.EPERM)
    allow = _statement(_RETURN, _ALLOW)
    program = [
        _statement(_LOAD, _ARCHITECTURE),
        _jump(_JUMP_EQUAL, AUDIT_ARCHITECTURES[machine], 1, 0),
        _statement(_RETURN, _KILL_PROCESS),
        _statement(_LOAD, _NUMBER),
    ]
    if not arm:
        # The numbers of the x32 ABI would pass the list.
        program += [_jump(_JUMP_GREATER_OR_EQUAL, _X32_BIT, 0, 1), refuse]
    unknown = _statement(_RETURN, _ERRNO | errno.ENOSYS)
    program += [_jump(_JUMP_GREATER_OR_EQUAL, _UNCHECKED, 0, 1), unknown]

    def on(call: SystemCall, body: list[bytes]) -> None:
        number = call.aarch64 if arm else call.x86_64
        if number is not None:
            program.extend([_jump(_JUMP_EQUAL, number, 0, len(body)), *body])

    for call in REFUSED.values():
        on(call, [refuse])
    for call in IGNORED.values():
        on(call, [_statement(_RETURN, _ERRNO)])
    # The filter cannot read clone3()'s flags. The C library uses clone() where this is unknown.
    on(_CLONE3, [unknown])
    on(_CLONE, [_load(0), _jump(_JUMP_SET, _NAMESPACES | _CLONE_PARENT, 0, 1), refuse, allow])
    on(
        _FCNTL,
        [
            _load(1),
            _jump(_JUMP_GREATER_OR_EQUAL, _UNCHECKED_COMMAND, 2, 0),
            _jump(_JUMP_EQUAL, _F_SETLEASE, 1, 0), _jump(_JUMP_EQUAL, _F_NOTIFY, 0, 1), refuse,
            allow,
        ],
    )  # fmt: skip
    for call, index in OWN_ONLY.values():
        on(call, [_load(index), _jump(_JUMP_EQUAL, 0, 0, 1), allow, refuse])
    on(
        _SETPRIORITY,
        [
            _load(0), _jump(_JUMP_EQUAL, 0, 0, 3),
            _load(1), _jump(_JUMP_EQUAL, 0, 0, 1), allow,
            refuse,
        ],
    )  # fmt: skip
    # A datagram socket of a pair could still send to a path.
    has_datagrams = [
        _load(1), _statement(_AND, _SOCKET_TYPE_MASK), _jump(_JUMP_EQUAL, _DATAGRAM, 1, 0),
    ]  # fmt: skip
    pair = [allow, refuse] if unix else [*has_datagrams, allow, refuse]
    on(_SOCKETPAIR, [_load(0), _jump(_JUMP_EQUAL, _UNIX, 0, len(pair) - 1), *pair])
    if not network and not unix:
        # A connection that the process was given could be directed elsewhere.
        on(_CONNECT, [refuse])
        on(_BIND, [refuse])
    # Processes of one user share a port: a gateway's (--reuse-http-port), too.
    on(
        _SETSOCKOPT,
        [
            _load(1), _jump(_JUMP_EQUAL, _SOL_SOCKET, 0, 3),
            _load(2), _jump(_JUMP_EQUAL, _SO_REUSEPORT, 0, 1), refuse,
            allow,
        ],
    )  # fmt: skip
    families = (_UNIX,) * unix + (_INET, _INET6) * network
    allowed = [part for family in families for part in (_jump(_JUMP_EQUAL, family, 0, 1), allow)]
    on(_SOCKET, [_load(0), *allowed, refuse])
    return b"".join([*program, allow])


def _statement(code: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, 0, 0, value)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _load(index: int) -> bytes:
    """Load the low word of an argument; the kernel uses no more of those that are compared."""
    return _statement(_LOAD, _ARGUMENTS + 8 * index)
