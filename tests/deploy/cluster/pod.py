"""One pod, and what the kubelet does for it: its volumes, init containers, probes and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from tests.deploy.cluster.image import ENVIRONMENT, Image, Mount, entrypoint
from tests.support.chart.rendering import Object
from tests.support.waiting import until
from tests.torment.hosts import Host

# The kubelet's defaults.
_PERIOD_S, _TIMEOUT_S, _FAILURES = 10, 1, 3
_BACK_OFF_S: Final = 1.0


@dataclass(frozen=True)
class Storage:
    """What the volumes of pods are made from."""

    # Of all pods.
    folder: Path
    image: Image
    secrets: dict[str, dict[str, bytes]]
    # A folder for each claim.
    claims: Path


class End(NamedTuple):
    """How a container ended that was to end."""

    pod: str
    # Of the process; negative: the signal that killed it.
    status: int
    # From SIGTERM on.
    seconds: float
    was_killed: bool


@dataclass
class Pod:
    """A pod on a host of its own, from its creation until its end."""

    name: str
    template: Object
    host: Host
    storage: Storage
    # Called whenever its readiness has changed.
    on_change: Callable[[], None]
    # Differs from that of a pod that had the same name.
    uid: str
    ready_since: float | None = None
    is_terminating: bool = False
    is_over: bool = False
    # What the kubelet had to do that it should not have to.
    complaints: list[str] = field(default_factory=list)
    end: End | None = None

    def __post_init__(self) -> None:
        self.labels: dict[str, str] = self.template["metadata"]["labels"]
        self._spec: Object = self.template["spec"]
        (self.container,) = self._spec["containers"]
        self._folder = self.storage.folder / self.uid
        self._volumes = {each["name"]: self._volume(each) for each in self._spec["volumes"]}
        self._log = Path(f"{self._folder}.log").open("wb")  # noqa: SIM115  (until its end)
        self._process: asyncio.subprocess.Process | None = None
        self._probes: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._status = 0

    @property
    def is_ready(self) -> bool:
        return self.ready_since is not None

    def is_available(self, after_s: float) -> bool:
        return self.ready_since is not None and time.monotonic() - self.ready_since >= after_s

    def port(self, name: str | int) -> int:
        """A port of the container by its name."""
        (found,) = (p["containerPort"] for p in self.container["ports"] if p["name"] == name)
        return int(found)

    # Files and processes

    def _volume(self, volume: Object) -> Path:
        path: Path = self._folder / volume["name"]
        group = self._spec["securityContext"]["fsGroup"]
        if claim := volume.get("persistentVolumeClaim"):
            name: str = claim["claimName"]
            return self.storage.claims / name
        path.mkdir(parents=True)
        if secret := volume.get("secret"):
            content = self.storage.secrets[secret["secretName"]]
            items = secret.get("items") or [{"key": key, "path": key} for key in content]
            for item in items:
                file = path / item["path"]
                file.write_bytes(content[item["key"]])
                os.chown(file, 0, group)
                file.chmod(secret["defaultMode"])
        else:
            assert "emptyDir" in volume, volume
            os.chown(path, 0, group)
            path.chmod(0o2777)
        return path

    def _mounts(self, container: Object) -> list[Mount]:
        return [
            Mount(
                self._volumes[each["name"]] / each.get("subPath", ""),
                each["mountPath"].rstrip("/"),
                bool(each.get("readOnly", False)),
            )
            for each in container["volumeMounts"]
        ]

    def _user(self) -> list[str]:
        security = self._spec["securityContext"]
        ids = {"reuid": "runAsUser", "regid": "runAsGroup", "groups": "fsGroup"}
        flags = [f"--{flag}={security[key]}" for flag, key in ids.items()]
        return ["setpriv", *flags, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]

    def _environ(self, container: Object) -> dict[str, str]:
        environ = ENVIRONMENT | {"HOSTNAME": self.name}
        for each in container.get("env", []):
            if "value" in each:
                environ[each["name"]] = each["value"]
            else:
                assert each["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
                environ[each["name"]] = self.name
        assert not container.get("envFrom")
        return environ

    async def _launch(self, container: Object) -> asyncio.subprocess.Process:
        environ = self._environ(container)
        words = [*container.get("command", []), *container.get("args", [])]
        if "command" not in container:
            words = [*entrypoint(container["image"]), *words]
        command = [re.sub(r"\$\((\w+)\)", lambda name: environ[name[1]], word) for word in words]
        script = self.storage.image.script(self.name, self._mounts(container))
        isolated = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc")
        argv = self.host.command(*isolated, "sh", "-ec", script, "sh", *self._user(), *command)
        log = self._log
        return await asyncio.create_subprocess_exec(*argv, env=environ, stdout=log, stderr=log)

    async def _pid(self) -> int:
        """Of the container's first process, which is number 1 there."""
        assert self._process
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        await until(children.read_text)
        return int(children.read_text().split()[0])

    async def _signal(self, number: signal.Signals) -> None:
        os.kill(await self._pid(), number)

    async def execute(self, *command: str) -> asyncio.subprocess.Process:
        """Run a command in the container, as exec probes and hooks do."""
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd")
        argv = ["nsenter", f"--target={await self._pid()}", *spaces, "--", *self._user(), *command]
        environ = self._environ(self.container)
        return await asyncio.create_subprocess_exec(
            *argv, env=environ, stdout=asyncio.subprocess.DEVNULL, stderr=self._log
        )

    # The kubelet

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def raise_failure(self) -> None:
        """Raise what ended the kubelet's work for this pod, if anything did."""
        for task in (self._task, self._probes):
            if task and task.done() and not task.cancelled():
                task.result()

    async def _run(self) -> None:
        for each in self._spec.get("initContainers", []):
            process = await self._launch(each)
            if status := await process.wait():
                raise RuntimeError(f"{each['name']} of {self.name} ended with status {status}")
        while not self.is_terminating:
            self._process = await self._launch(self.container)
            self._probes = asyncio.create_task(self._probe())
            self._status = await self._process.wait()
            self._probes.cancel()
            if not self.is_terminating:
                self._complain(f"ended by itself, with {self._status}")
                self._set_ready(ready=False)
                await asyncio.sleep(_BACK_OFF_S)
        self.is_over = True
        self._set_ready(ready=False)

    def _complain(self, text: str) -> None:
        now = datetime.now(UTC).time().isoformat("milliseconds")
        self.complaints.append(f"{now} {self.name} {text}")

    def _set_ready(self, *, ready: bool) -> None:
        if ready != self.is_ready:
            self.ready_since = time.monotonic() if ready else None
            self.on_change()

    async def _probe(self) -> None:
        await self._watch("startupProbe", until_success=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch("livenessProbe"))
            group.create_task(self._watch_readiness())

    async def _watch(self, kind: str, *, until_success: bool = False) -> None:
        """Restart the container after failures in a row."""
        probe, failures = self.container[kind], 0
        while failures < probe.get("failureThreshold", _FAILURES):
            await asyncio.sleep(probe.get("periodSeconds", _PERIOD_S))
            error = await self._failure(probe)
            if not error and until_success:
                return
            failures = failures + 1 if error else 0
        self._complain(f"its {kind} failed: {error}")
        await self._signal(signal.SIGKILL)

    async def _watch_readiness(self) -> None:
        probe, failures = self.container["readinessProbe"], 0
        while True:
            error = await self._failure(probe)
            failures = failures + 1 if error else 0
            if not error:
                self._set_ready(ready=True)
            elif failures >= probe.get("failureThreshold", _FAILURES):
                if self.is_ready:
                    self._complain(f"is no longer ready: {error}")
                self._set_ready(ready=False)
            await asyncio.sleep(probe.get("periodSeconds", _PERIOD_S))

    async def _failure(self, probe: Object) -> str:
        """Why a probe failed; "": it succeeded."""
        timeout_s = probe.get("timeoutSeconds", _TIMEOUT_S)
        if "exec" in probe:
            process = await self.execute(*probe["exec"]["command"])
            with contextlib.suppress(TimeoutError):
                status = await asyncio.wait_for(process.wait(), timeout_s)
                return f"status {status}" if status else ""
            process.kill()
            return "timed out"
        http_get = probe["httpGet"]
        port = self.port(http_get["port"])
        return await asyncio.to_thread(
            _http_failure, self.host.address, port, http_get["path"], timeout_s
        )

    async def terminate(self) -> End:
        """What follows the pod's deletion: out of its Services, the hook, SIGTERM, SIGKILL."""
        assert self._probes
        assert self._task
        grace_s = self._spec["terminationGracePeriodSeconds"]
        deadline = time.monotonic() + grace_s
        self.is_terminating = True
        self._probes.cancel()
        self.on_change()
        if hook := self.container.get("lifecycle", {}).get("preStop"):
            process = await self.execute(*hook["exec"]["command"])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), grace_s)
        began = time.monotonic()
        await self._signal(signal.SIGTERM)
        was_killed = False
        try:
            await asyncio.wait_for(asyncio.shield(self._task), deadline - time.monotonic())
        except TimeoutError:
            was_killed = True
            await self._signal(signal.SIGKILL)
            await self._task
        self.end = End(self.name, self._status, round(time.monotonic() - began, 1), was_killed)
        self._remove()
        return self.end

    def _remove(self) -> None:
        shutil.rmtree(self._folder)
        self._log.close()
        assert self.host.keeper
        self.host.keeper.kill()
        self.host.keeper.wait()


def _http_failure(host: str, port: int, path: str, timeout_s: float) -> str:
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        return "" if 200 <= response.status < 400 else f"{response.status} {response.read()!r}"
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        connection.close()
