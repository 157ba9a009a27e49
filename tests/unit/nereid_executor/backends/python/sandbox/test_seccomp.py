"""The filter of system calls, run by an interpreter of its instructions."""

from __future__ import annotations

import errno
import struct

import pytest

from nereid_executor.backends.python.sandbox import seccomp

ALLOWED = 0x7FFF0000
REFUSED = 0x00050000 | errno.EPERM
UNKNOWN = 0x00050000 | errno.ENOSYS
KILLED = 0x80000000
MACHINES = ("x86_64", "aarch64")
# Numbers of read(), write(), futex(), recvmsg() and execve().
ORDINARY = {"x86_64": (0, 1, 202, 47, 59), "aarch64": (63, 64, 98, 212, 221)}
SOCKET = {"x86_64": 41, "aarch64": 198}
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
CONNECT = {"x86_64": 42, "aarch64": 203}
SETSOCKOPT = {"x86_64": 54, "aarch64": 208}
CLONE = {"x86_64": 56, "aarch64": 220}
FCNTL = {"x86_64": 72, "aarch64": 25}
SETPRIORITY = {"x86_64": 141, "aarch64": 140}
UNIX, INET, INET6, NETLINK, PACKET, VSOCK = 1, 2, 10, 16, 17, 40
STREAM, DATAGRAM, CLOEXEC = 1, 2, 0o2000000


def outcome(
    machine: str,
    number: int,
    *arguments: int,
    network: bool = False,
    unix: bool = False,
    architecture: int = 0,
) -> int:
    """Return what the filter says of a call."""
    built = seccomp.build_filter(machine, network=network, unix=unix)
    program = list(struct.iter_unpack("<HBBI", built))
    architecture = architecture or seccomp.AUDIT_ARCHITECTURES[machine]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    value = at = 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, operand)
            case 0x54:
                value &= operand
            case 0x06:
                return int(operand)
            case 0x15:
                at += if_true if value == operand else if_false
            case 0x35:
                at += if_true if value >= operand else if_false
            case 0x45:
                at += if_true if value & operand else if_false
            case _:
                raise AssertionError(f"no instruction {code:#x}")


@pytest.mark.parametrize("machine", MACHINES)
def test_some_calls_have_no_effect(machine: str) -> None:
    for call in seccomp.IGNORED.values():
        assert outcome(machine, getattr(call, machine)) == 0x00050000


@pytest.mark.parametrize("machine", MACHINES)
def test_ordinary_calls_pass(machine: str) -> None:
    for number in ORDINARY[machine]:
        assert outcome(machine, number) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", seccomp.REFUSED)
def test_listed_calls_are_refused(machine: str, name: str) -> None:
    number = getattr(seccomp.REFUSED[name], machine)
    if number is not None:
        assert outcome(machine, number) == REFUSED


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", seccomp.OWN_ONLY)
def test_other_processes_cannot_be_set(machine: str, name: str) -> None:
    call, index = seccomp.OWN_ONLY[name]
    arguments = [7] * index
    assert outcome(machine, getattr(call, machine), *arguments, 0) == ALLOWED
    assert outcome(machine, getattr(call, machine), *arguments, 4242) == REFUSED


@pytest.mark.parametrize("machine", MACHINES)
def test_own_priority_alone_can_be_set(machine: str) -> None:
    assert outcome(machine, SETPRIORITY[machine], 0, 0) == ALLOWED
    assert outcome(machine, SETPRIORITY[machine], 0, 4242) == REFUSED
    assert outcome(machine, SETPRIORITY[machine], 2, 0) == REFUSED


@pytest.mark.parametrize("machine", MACHINES)
def test_no_sockets_but_pairs_of_streams(machine: str) -> None:
    for family in (UNIX, INET, INET6, NETLINK, PACKET, VSOCK):
        assert outcome(machine, SOCKET[machine], family, STREAM) == REFUSED
    assert outcome(machine, CONNECT[machine], 5) == REFUSED
    assert outcome(machine, SOCKETPAIR[machine], UNIX, STREAM | CLOEXEC) == ALLOWED
    assert outcome(machine, SOCKETPAIR[machine], UNIX, DATAGRAM | CLOEXEC) == REFUSED
    assert outcome(machine, SOCKETPAIR[machine], INET, STREAM) == REFUSED


@pytest.mark.parametrize("machine", MACHINES)
def test_the_network_where_it_is_allowed(machine: str) -> None:
    for family in (INET, INET6):
        assert outcome(machine, SOCKET[machine], family, STREAM, network=True) == ALLOWED
    for family in (UNIX, NETLINK, PACKET, VSOCK):
        assert outcome(machine, SOCKET[machine], family, STREAM, network=True) == REFUSED
    assert outcome(machine, CONNECT[machine], 5, network=True) == ALLOWED
    # SO_REUSEADDR and SO_REUSEPORT: with the latter it could take a gateway's connections.
    assert outcome(machine, SETSOCKOPT[machine], 5, 1, 2, network=True) == ALLOWED
    assert outcome(machine, SETSOCKOPT[machine], 5, 1, 15, network=True) == REFUSED
    assert outcome(machine, SETSOCKOPT[machine], 5, 6, 15, network=True) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_unix_sockets_where_there_are_none_of_others(machine: str) -> None:
    assert outcome(machine, SOCKET[machine], UNIX, STREAM, unix=True) == ALLOWED
    assert outcome(machine, SOCKETPAIR[machine], UNIX, DATAGRAM, unix=True) == ALLOWED
    assert outcome(machine, SOCKETPAIR[machine], INET, STREAM, unix=True) == REFUSED
    assert outcome(machine, CONNECT[machine], 5, unix=True) == ALLOWED
    for family in (INET, INET6, NETLINK, PACKET, VSOCK):
        assert outcome(machine, SOCKET[machine], family, STREAM, unix=True) == REFUSED
    assert outcome(machine, SOCKET[machine], INET, STREAM, unix=True, network=True) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_processes_but_no_namespaces(machine: str) -> None:
    child, thread = 17, 0x3D0F00
    for flags in (child, thread):
        assert outcome(machine, CLONE[machine], flags) == ALLOWED
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert outcome(machine, CLONE[machine], child | namespace) == REFUSED
    # The parent of its parent would have to wait for it.
    assert outcome(machine, CLONE[machine], child | 0x8000) == REFUSED
    assert outcome(machine, 435) == UNKNOWN


@pytest.mark.parametrize("machine", MACHINES)
def test_system_calls_that_are_newer_than_the_list(machine: str) -> None:
    """Programs that know them do without them on other kernels."""
    assert outcome(machine, 466) == ALLOWED
    for number in (467, 468, 1000):
        assert outcome(machine, number) == UNKNOWN


@pytest.mark.parametrize("machine", MACHINES)
def test_no_leases_and_notifications_of_files(machine: str) -> None:
    # Commands of fcntl(): of descriptors and locks, then of pipes and seals.
    for command in (*range(17), 36, 37, 38, 1025, *range(1027, 1039)):
        assert outcome(machine, FCNTL[machine], 3, command) == ALLOWED
    # F_SETLEASE, F_NOTIFY, F_SETDELEG.
    for command in (1024, 1026, 1040):
        assert outcome(machine, FCNTL[machine], 3, command) == REFUSED


def test_other_architectures_of_the_same_machine() -> None:
    i386 = 0x40000003
    assert outcome("x86_64", 1, architecture=i386) == KILLED
    assert outcome("x86_64", 0x40000000 | 101) == REFUSED
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.build_filter("riscv64", network=False, unix=False)
