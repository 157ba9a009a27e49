"""Kubernetes' API server with etcd behind it, and nothing else of a cluster: it validates, fills in
defaults and keeps what is applied, and no pod starts.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import secrets
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from tests.support.mesh.mesh import free_port, until
from tests.support.peers.certificates import Authority

START_S: Final = 180.0
_PROGRAMS: Final = ("etcd", "kube-apiserver")
# Folder that scripts/build_kube_apiserver.sh makes.
BUILT: Final = Path(__file__).parents[3] / "build/kubernetes/bin"

Object = dict[str, Any]


def binaries() -> dict[str, str] | None:
    """etcd and kube-apiserver: those of $KUBEBUILDER_ASSETS, the script's, or PATH's."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    places = [given] if given else [str(BUILT), *os.get_exec_path()]
    found = {name: shutil.which(name, path=os.pathsep.join(places)) for name in _PROGRAMS}
    return {name: path for name, path in found.items() if path} if all(found.values()) else None


class ApiError(Exception):
    """A request that the API server refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Resource(NamedTuple):
    """The place of a kind's objects in URLs."""

    plural: str
    namespaced: bool


@dataclass(frozen=True)
class Applied:
    """An object as it is kept, and what the server had to say."""

    stored: Object
    warnings: tuple[str, ...]


class ApiServer:
    """Both processes, and a client with all rights."""

    def __init__(self, folder: Path, programs: dict[str, str]) -> None:
        self._folder = folder
        self._programs = programs
        authority = Authority(folder)
        self.authority = authority.root
        self._identity = authority.identity()
        self.token = secrets.token_hex(16)
        self._port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connection = http.client.HTTPSConnection(
            "127.0.0.1",
            self._port,
            timeout=START_S,
            context=ssl.create_default_context(cafile=self.authority),
        )
        self._kinds: dict[str, dict[str, Resource] | None] = {}
        self._namespaces = itertools.count()
        # Version of Kubernetes, such as (1, 33).
        self.version = (0, 0)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        etcd = f"http://127.0.0.1:{free_port()}"
        peers = f"http://127.0.0.1:{free_port()}"
        users = self._folder / "users.csv"
        users.write_text(f'{self.token},tester,1,"system:masters"\n')
        try:
            self._start(
                "etcd", f"--data-dir={self._folder / 'etcd'}",
                f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}",
                f"--initial-cluster=default={peers}",
            )  # fmt: skip
            self._start(
                "kube-apiserver", f"--etcd-servers={etcd}",
                "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
                f"--secure-port={self._port}", "--service-cluster-ip-range=10.96.0.0/16",
                f"--tls-cert-file={self._identity.cert}",
                f"--tls-private-key-file={self._identity.key}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={self._identity.key}",
                f"--service-account-signing-key-file={self._identity.key}",
                f"--token-auth-file={users}", "--authorization-mode=RBAC",
                # Its own address would be an endpoint, which an address of the loopback cannot be.
                "--endpoint-reconciler-type=none",
            )  # fmt: skip
            self._await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._connection.close()
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()

    def request(
        self, method: str, path: str, body: Any = None, content: str = "application/json"
    ) -> Applied:
        """Raises ApiError."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content}
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, headers)
        response = self._connection.getresponse()
        reply = response.read().decode(errors="replace")
        found = json.loads(reply) if reply.startswith("{") else {}
        if response.status >= 300:
            raise ApiError(response.status, found.get("message", reply))
        return Applied(found, tuple(response.headers.get_all("Warning", [])))

    def resource(self, api_version: str, kind: str) -> Resource | None:
        """Return a kind's resource; `None` if the server does not know it in that version."""
        if self._kinds.get(api_version) is None:
            self._kinds[api_version] = self._discovered(api_version)
        return (self._kinds[api_version] or {}).get(kind)

    def path(self, each: Object, namespace: str, name: str = "") -> str:
        """Return the path of an object, or of all of its kind in the namespace."""
        resource = self.resource(each["apiVersion"], each["kind"])
        assert resource is not None, each["apiVersion"]
        where = f"/namespaces/{namespace}" if resource.namespaced else ""
        path = f"{_prefix(each['apiVersion'])}{where}/{resource.plural}"
        return f"{path}/{name}" if name else path

    def apply(self, each: Object, namespace: str, *, dry_run: bool = False) -> Applied:
        """Server-side. Unknown fields are errors: by themselves, and by fieldValidation where the
        server has it. Raises ApiError.
        """
        query = "fieldManager=tests&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        path = self.path(each, namespace, each["metadata"]["name"])
        return self.request("PATCH", f"{path}?{query}", each, "application/apply-patch+yaml")

    def get(self, each: Object, namespace: str) -> Object:
        return self.request("GET", self.path(each, namespace, each["metadata"]["name"])).stored

    def new_namespace(self) -> str:
        name = f"test-{next(self._namespaces)}"
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.request("POST", "/api/v1/namespaces", namespace)
        return name

    def define(self, api_version: str, kind: str, *, namespaced: bool = True) -> None:
        """Make the server know a kind of another project's, whatever its objects have in spec."""
        group, _, version = api_version.partition("/")
        plural = f"{kind.lower()}s"
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{plural}.{group}",
                # For those of Kubernetes' own projects.
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
            },
            "spec": {
                "group": group,
                "scope": "Namespaced" if namespaced else "Cluster",
                "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
                "versions": [
                    {
                        "name": version,
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": schema},
                    }
                ],
            },
        }
        self.apply(definition, "")

        def is_served() -> bool:
            self._kinds.pop(api_version, None)
            return self.resource(api_version, kind) is not None

        until(is_served, f"{kind} to be served", START_S)

    def _start(self, name: str, *options: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            argv = [self._programs[name], *options]
            process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self._folder)
        self._processes.append(process)

    def _await_ready(self) -> None:
        def has_ended() -> bool:
            return any(process.poll() is not None for process in self._processes)

        try:
            until(lambda: has_ended() or self._is_ready(), "the API server", START_S)
            assert not has_ended()
        except (AssertionError, TimeoutError) as error:
            logs = [self._folder / f"{name}.log" for name in _PROGRAMS]
            error.add_note("\n".join(log.read_text()[-3000:] for log in logs))
            raise
        version = self.request("GET", "/version").stored
        major, minor = (re.match(r"\d+", version[key]) for key in ("major", "minor"))
        assert major is not None
        assert minor is not None
        self.version = (int(major[0]), int(minor[0]))

    def _is_ready(self) -> bool:
        try:
            self.request("GET", "/readyz")
            # Made when it has started, and without it nothing can be in it.
            self.request("GET", "/api/v1/namespaces/default")
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return False
        except ApiError:
            return False
        return True

    def _discovered(self, api_version: str) -> dict[str, Resource] | None:
        try:
            found = self.request("GET", _prefix(api_version)).stored["resources"]
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return {
            each["kind"]: Resource(each["name"], each["namespaced"])
            for each in found
            # Not a part of objects, such as their status.
            if "/" not in each["name"]
        }


def _prefix(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


@contextlib.contextmanager
def api_server(folder: Path, programs: dict[str, str]) -> Iterator[ApiServer]:
    folder.mkdir(parents=True, exist_ok=True)
    with ApiServer(folder, programs) as server:
        yield server
