"""Notifications of systemd, over real sockets."""

import logging
import socket
from pathlib import Path

import pytest

from nereid_mesh.serve.service_manager import READY, STOPPING, ServiceManager


@pytest.mark.parametrize("is_abstract", [False, True])
def test_states_arrive_as_datagrams(tmp_path: Path, is_abstract: bool) -> None:
    path = f"@nereid{tmp_path}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as receiver:
        receiver.bind(path.replace("@", "\0", 1))
        environ = {"NOTIFY_SOCKET": path, "HOME": "/"}
        manager = ServiceManager(environ)
        assert environ == {"HOME": "/"}
        manager.notify(READY)
        manager.notify(STOPPING)
        assert [receiver.recv(100) for _ in range(2)] == [b"READY=1", b"STOPPING=1"]


def test_without_a_service_manager_nothing_is_sent() -> None:
    ServiceManager({}).notify(READY)


def test_an_error_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "none")}).notify(READY)
    assert "not notified of READY=1: [Errno 2]" in caplog.text
