"""What somebody who is inside a container can do: in one of the mesh's, in a model's code, and in a
container beside them.
"""

from __future__ import annotations

import ast
import json
import re
import urllib.error
import urllib.request
from urllib.parse import quote

import pytest

from nereid.mesh_auth.roles import method_roles
from scripts.sbom import CONTENTS, components_of
from tests.compose.keys import OPERATOR, headers
from tests.compose.models import PLAIN, PROBER
from tests.compose.stack import SERVICES, Stack

_IDENTITY = """
import os
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
print({"users": os.getresuid(), "groups": os.getresgid(), **{
    name: int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")
}})
"""
_PROGRAMS = """
import os
folders = [each for each in os.get_exec_path() if os.path.isdir(each) and "/opt/" not in each]
print(sorted({name for folder in folders for name in os.listdir(folder)}))
"""
_VERSION = "import platform; print(platform.python_version())"
_WRITE = """
import os
for path in ("/", "/opt/nereid/lib", "/usr/bin", "/etc", "/models", "/run/nereid", "/var"):
    if os.path.exists(path):
        try:
            open(path + "/written", "w")
        except OSError as error:
            print(error.strerror, end=";")
        else:
            print("written to", path)
"""
# Prints the status of each call, and then of each with credentials of another mesh's token.
_CALLS = """
import asyncio
from nereid.mesh_auth.credentials import Credentials
from nereid.mesh_auth.tokens import MeshToken, new_token
from nereid.mesh_auth.roles import Role, method_roles
from nereid.rpc import ChannelOptions, RpcError, SocketChannel
async def main():
    token = MeshToken(new_token())
    statuses = set()
    for path, roles in method_roles().items():
        for role in (None, *roles):
            credentials = None if role is None else Credentials(role, token.key(role)).metadata
            channel = SocketChannel({address!r}, ChannelOptions(credentials=credentials))
            try:
                await channel.unary(path, b"", timeout_s=10)
                statuses.add("accepted: " + path)
            except RpcError as error:
                statuses.add(error.status.name)
            await channel.close()
    print(sorted(statuses))
asyncio.run(main())
"""
_CONNECT = """
import socket
for host, port in {places!r}:
    try:
        socket.create_connection((host, port), timeout=3).close()
        print(host, port, "connected")
    except OSError as error:
        print(host, port, type(error).__name__)
"""
_REQUESTS = """
import urllib.error, urllib.request
for method, url in {requests!r}:
    try:
        request = urllib.request.Request(url, method=method)
        print(urllib.request.urlopen(request, timeout=10).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_has_python_and_no_shell(stack: Stack, service: str) -> None:
    for shell in ("sh", "/bin/sh", "bash", "dash", "busybox", "apt", "apt-get", "dpkg", "pip"):
        with pytest.raises(AssertionError, match=r"executable file not found|no such file"):
            stack.compose("exec", "-T", service, shell, "-c", "true")
    programs = ast.literal_eval(stack.python(service, _PROGRAMS))
    assert {each for each in programs if not each.startswith("python3.")} == {
        *("ldconfig", "python", "python3")
    }


@pytest.mark.parametrize("service", SERVICES)
def test_the_bill_of_materials_has_all_that_the_image_is_made_of(
    stack: Stack, service: str
) -> None:
    listed = components_of(stack.python(service, CONTENTS))
    by_name = {each["name"]: each for each in listed}
    assert by_name["python"]["version"] == stack.python(service, _VERSION)
    for name in ("libc6", "libstdc++6", "libssl3", "zlib1g", "ca-certificates", "tzdata"):
        assert re.fullmatch(
            rf"pkg:deb/debian/{re.escape(quote(name))}@[^/]+", by_name[name]["purl"]
        )
    assert not by_name.keys() & {"dash", "bash", "apt", "dpkg", "coreutils", "findutils"}


def test_each_service_has_a_user_of_its_own_and_no_privilege(stack: Stack) -> None:
    users = []
    for service in SERVICES:
        found = ast.literal_eval(stack.python(service, _IDENTITY))
        (user,), (group,) = set(found.pop("users")), set(found.pop("groups"))
        users.append(user)
        assert group == 10001, service
        none = dict.fromkeys(("CapEff", "CapPrm", "CapBnd"), 0)
        assert found == none | {"NoNewPrivs": 1, "Seccomp": 2}, service
    assert sorted(users) == [10001, 10002, 10003, 10004]


def test_no_service_can_write_to_its_image(stack: Stack) -> None:
    for service in SERVICES:
        errors = stack.python(service, _WRITE).rstrip(";").split(";")
        assert set(errors) == {"Read-only file system"}, service
        assert len(errors) >= 5, service


def _run(stack: Stack, code: str) -> str:
    """Return what code replies that runs in the worker of a confined model."""
    tensor = {"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]}
    url = f"http://{stack.address('gateway', 8000)}/v2/models/{PROBER}/infer"
    body = json.dumps({"inputs": [tensor]}).encode()
    request = urllib.request.Request(url, body, headers(OPERATOR))
    with urllib.request.urlopen(request, timeout=30) as response:
        return str(json.load(response)["outputs"][0]["data"][0])


@pytest.mark.parametrize(
    "code",
    [
        "open('/run/nereid/executor/token').read()",
        f"open('/models/{PLAIN}/1/model.onnx', 'rb').read()",
        "os.listdir('/models')",
        "os.listdir('/var/cache/nereid')",
        "open('/proc/1/environ').read()",
        "open('/proc/1/mem', 'rb')",
        "os.listdir('/proc/1/fd')",
        "os.kill(1, 0)",
        "import socket; socket.create_connection(('scheduler', 8003), 3)",
        "import socket; socket.create_connection(('127.0.0.1', 8002), 3)",
        "import socket; socket.create_connection(('169.254.169.254', 80), 1)",
        "system_call(101, 16, 1, 0, 0)",
        "system_call(165, b'none', b'/tmp', b'tmpfs', 0, 0)",
        "system_call(272, 0x10000000)",
        "pb_utils.unload_model('doubler')",
    ],
)
def test_the_sandbox_holds_under_dockers_profile(stack: Stack, code: str) -> None:
    reply = _run(stack, code)
    denied = ("PermissionError", "EPERM", "Read-only file system", "confined model may")
    # Names are resolved by datagrams, which the sandbox refuses.
    assert any(text in reply for text in (*denied, "gaierror")), reply


def test_what_the_sandbox_lacks_there_is_logged_and_shown(stack: Stack) -> None:
    lacking = "no user namespaces: models share /dev/shm"
    assert lacking in stack.compose("logs", "executor")
    url = f"http://{stack.address('gateway', 8000)}/console/facts"
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=headers(OPERATOR)), timeout=10
    ) as response:
        assert lacking in response.read().decode()


def test_a_container_beside_the_mesh_has_no_right(stack: Stack) -> None:
    """It is in the mesh's network, without a token."""
    assert len(method_roles()) > 20
    for address in ("scheduler:8003", "cache:8004"):
        printed = stack.python_outside("mesh", "scheduler", _CALLS.format(address=address))
        # A service has only some of the methods.
        assert set(ast.literal_eval(printed)) in (
            {"UNAUTHENTICATED"},
            {"UNAUTHENTICATED", "UNIMPLEMENTED"},
        ), address
    places = [("redis", 6379), ("executor", 8003), ("prometheus", 9090)]
    printed = stack.python_outside("mesh", "cache", _CONNECT.format(places=places))
    assert "redis 6379 gaierror" in printed
    inference, metrics = "http://gateway:8000/v2", "http://executor:8002"
    requests = [
        ("GET", f"{inference}/models/{PLAIN}"),
        ("POST", f"{inference}/models/{PLAIN}/infer"),
        ("POST", f"{inference}/repository/models/{PLAIN}/unload"),
        ("GET", "http://gateway:8000/console/facts"),
        ("POST", f"{metrics}/metrics"),
        ("GET", f"{metrics}/v2/repository/index"),
    ]
    printed = stack.python_outside("mesh", "cache", _REQUESTS.format(requests=requests))
    assert printed.split() == ["401"] * 4 + ["405", "404"]
