"""Hosts of a mesh on one machine: network namespaces behind a bridge, where that can be had.

Everything lives in namespaces of the campaign's own (`unshare`), of processes and mounts as well:
however the campaign ends, nothing of it remains. Without the right to make them all services listen
at the loopback address, and faults of the network and of disks are left out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_NETWORK: Final = "10.231.0"
# Of hostile clients, whom the mesh shall know by their address.
HOSTILE_ADDRESS: Final = f"{_NETWORK}.250"
CLIENT_ADDRESS: Final = f"{_NETWORK}.1"
_INSIDE: Final = "NEREID_TORMENT_INSIDE"
# What is executed behind these words is killed when the process ends that started it.
WITH_PARENT: Final = ("setpriv", "--pdeathsig", "KILL")


def can_isolate() -> bool:
    """Whether this machine lets us make hosts."""
    if not all(map(shutil.which, ("unshare", "nsenter", "setpriv", "ip", "mount"))):
        return False
    tried = "ip link add nereid0 type veth peer name nereid1 && mount -t tmpfs tmpfs /mnt"
    ended = subprocess.run(
        [*_unshare(), "sh", "-c", tried], capture_output=True, check=False, timeout=60
    )
    return ended.returncode == 0


def _unshare() -> list[str]:
    own_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    spaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *own_user, *spaces]


def is_inside() -> bool:
    return _INSIDE in os.environ


def enter(module: str, arguments: list[str]) -> int:
    """Run a module in namespaces of its own; its exit status."""
    # unshare blocks SIGTERM; it is killed with this process, and all that is inside with it.
    argv = [*WITH_PARENT, *_unshare(), sys.executable, "-m", module]
    env = os.environ | {_INSIDE: "1"}
    return subprocess.run([*argv, *arguments], env=env, check=False).returncode


def become_init() -> None:
    """The first process of a namespace waits for orphans; a child of it does the work."""
    child = os.fork()
    if not child:
        return
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


@dataclass
class Host:
    """Where one service runs."""

    name: str
    address: str
    # Keeps the namespace; None where hosts share the machine's network.
    keeper: subprocess.Popen[bytes] | None = None

    def command(self, *argv: str) -> list[str]:
        """What to execute for argv to run there, in the same process."""
        if not self.keeper:
            # Nothing else ends it with the campaign.
            return [*(WITH_PARENT if shutil.which(WITH_PARENT[0]) else ()), *argv]
        return ["nsenter", f"--net=/proc/{self.keeper.pid}/ns/net", "--", *argv]


@dataclass
class Hosts:
    """The hosts of one campaign."""

    isolated: bool
    hosts: dict[str, Host] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.isolated:
            run("ip", "link", "set", "lo", "up")
            # An address of its own: else it changes with each host that is added.
            run("ip", "link", "add", "br0", "address", "02:00:00:00:00:01", "type", "bridge")
            run("ip", "addr", "add", f"{CLIENT_ADDRESS}/24", "dev", "br0")
            run("ip", "addr", "add", f"{HOSTILE_ADDRESS}/24", "dev", "br0")
            run("ip", "link", "set", "br0", "up")

    def add(self, name: str) -> Host:
        if not self.isolated:
            host = Host(name, "127.0.0.1")
        else:
            number = len(self.hosts) + 2
            keeper = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
            host = Host(name, f"{_NETWORK}.{number}", keeper)
            self._connect(host, number)
        self.hosts[name] = host
        return host

    def _connect(self, host: Host, number: int) -> None:
        assert host.keeper
        ours = Path("/proc/self/ns/net").readlink()
        # unshare is a process of our own namespace at first.
        while Path(f"/proc/{host.keeper.pid}/ns/net").readlink() == ours:
            os.sched_yield()
        run("ip", "link", "add", f"veth{number}", "type", "veth", "peer", "name", f"peer{number}")
        run("ip", "link", "set", f"peer{number}", "netns", str(host.keeper.pid))
        run("ip", "link", "set", f"veth{number}", "master", "br0", "up")
        run(*host.command("ip", "link", "set", f"peer{number}", "name", "eth0"))
        run(*host.command("ip", "addr", "add", f"{host.address}/24", "dev", "eth0"))
        run(*host.command("ip", "link", "set", "eth0", "up"))
        run(*host.command("ip", "link", "set", "lo", "up"))

    def close(self) -> None:
        for host in self.hosts.values():
            if host.keeper:
                host.keeper.kill()
                host.keeper.wait()
        if self.isolated:
            with contextlib.suppress(subprocess.CalledProcessError):
                run("ip", "link", "del", "br0")


def run(*argv: str) -> None:
    """Raises CalledProcessError, with what the program says."""
    ended = subprocess.run(argv, capture_output=True, check=False)
    if ended.returncode:
        raise subprocess.CalledProcessError(
            ended.returncode, argv, ended.stdout, ended.stderr.decode(errors="replace")
        )
