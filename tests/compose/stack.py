"""Drives docker-compose.yml as a user does, as a project of its own on whatever engine there is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.compose.keys import Keys

ROOT = Path(__file__).parents[2]
SERVICES = ("gateway", "scheduler", "executor", "cache")
# Base images by the variable that names another.
IMAGES = {"PYTHON_IMAGE": "python", "REDIS_IMAGE": "redis", "PROMETHEUS_IMAGE": "prom/prometheus"}
_LIMIT_S = 420.0
# What a user adds for authentication; the flags are in an env_file.
_OVERRIDE: Final = """
services:
  gateway: {volumes: ["%s:/auth:ro"]}
"""
_FLAGS: Final = """
NEREID_AUTH_CONFIG=/auth/auth.toml
NEREID_CONSOLE=true
NEREID_SANDBOX_MODELS=true
"""


class Stack:
    """One Compose project, whose clients need keys and whose Python models are confined."""

    def __init__(self, repository: Path, keys: Keys) -> None:
        self.keys = keys
        self._override = keys.folder.parent / "docker-compose.override.yml"
        self._override.write_text(_OVERRIDE % keys.folder)
        flags = keys.folder.parent / "nereid.env"
        flags.write_text(_FLAGS)
        self.project = f"nereid-test-{os.getpid()}"
        # What the user set for a mesh of their own is not for this one; 0: any free port.
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("NEREID_")}
        self._environment |= {
            f"NEREID_{name}_PORT": "0" for name in ("HTTP", "GRPC", "METRICS", "PROMETHEUS")
        }
        self._environment |= {
            "NEREID_MODEL_REPOSITORY": str(repository),
            "NEREID_ENV_FILE": str(flags),
            "NEREID_TAG": "test",
        }
        self._environment |= self._images_without_registry()

    def _images_without_registry(self) -> dict[str, str]:
        """What an engine without the pinned images has by other tags: it reaches no registry."""
        files = [(ROOT / name).read_text() for name in ("deploy/Dockerfile", "docker-compose.yml")]
        found = {}
        for variable, repository in IMAGES.items():
            pinned = re.search(rf"{variable}(?:=|:-)({repository}:[\w.@:-]+)", "\n".join(files))
            assert pinned is not None, f"{variable} has no pinned image"
            if self._has_image(pinned[1]):
                continue
            shown = self.docker("images", "--format={{.Repository}}:{{.Tag}}", repository)
            if shown.split():
                found[variable] = shown.split()[0]
        return found

    def _has_image(self, name: str) -> bool:
        try:
            self.docker("image", "inspect", name)
        except AssertionError:
            return False
        return True

    def docker(self, *words: str) -> str:
        """What the command printed; its errors are reported if it fails."""
        done = subprocess.run(
            ["docker", *words],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            tail = (done.stdout + done.stderr)[-6000:]
            raise AssertionError(f"docker {' '.join(words)} ended with {done.returncode}:\n{tail}")
        return done.stdout

    def compose(self, *words: str) -> str:
        files = ("-f", "docker-compose.yml", "-f", str(self._override))
        return self.docker("compose", "-p", self.project, "--env-file", os.devnull, *files, *words)

    def up(self, *words: str, executors: int = 1) -> None:
        """Start what does not run, and wait until all of it is healthy."""
        try:
            self.compose(
                "up", "--wait", "--wait-timeout", "240", "--scale", f"executor={executors}", *words
            )
        except AssertionError as error:
            error.add_note(self.compose("ps", "--all"))
            error.add_note(self.compose("logs", "--tail", "40"))
            raise

    def down(self) -> list[str]:
        """End everything; what is left of it nevertheless."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "20")
        mine = f"label=com.docker.compose.project={self.project}"
        kinds = (("ps", "--all"), ("network", "ls"), ("volume", "ls"))
        return [
            line
            for kind in kinds
            for line in self.docker(*kind, "--quiet", "--filter", mine).split()
        ]

    def containers(self, service: str) -> list[str]:
        """The service's running containers."""
        return self.compose("ps", "--quiet", service).split()

    def facts(self, service: str) -> dict[str, Any]:
        """What the engine knows of a container of the service, which may have ended."""
        container = self.compose("ps", "--all", "--quiet", service).split()[0]
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", container))
        return found[0]

    def image_bytes(self, name: str) -> int:
        """Return an image's size, unpacked."""
        return int(self.docker("image", "inspect", "--format={{.Size}}", name))

    def python(self, service: str, program: str) -> str:
        """What a program in Python prints in the service's container."""
        return self.compose("exec", "-T", service, "python", "-c", program).strip()

    def python_outside(self, network: str, image: str, program: str) -> str:
        """What a program prints in a container that is in a network, and none of the mesh's."""
        options = ("--rm", "--network", f"{self.project}_{network}", "--entrypoint", "python")
        return self.docker("run", *options, f"nereid-{image}:test", "-P", "-c", program).strip()

    def address(self, service: str, port: int) -> str:
        """Where a container's port is on this host."""
        shown = self.compose("port", service, str(port)).strip()
        return f"127.0.0.1:{shown.rpartition(':')[2]}"

    def edges(self) -> tuple[str, str]:
        """Where the gateway's HTTP and gRPC ports are."""
        return self.address("gateway", 8000), self.address("gateway", 8001)

    def metrics(self) -> dict[str, float]:
        """The mesh's metrics page, series by series."""
        page = _get(f"http://{self.address('gateway', 8002)}/metrics").decode()
        lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
        return {series: float(value) for series, _, value in lines}

    def targets(self) -> list[tuple[str, str]]:
        """What Prometheus scrapes: each target's job and health."""
        url = f"http://{self.address('prometheus', 9090)}/api/v1/targets?state=active"
        found: list[dict[str, Any]] = json.loads(_get(url))["data"]["activeTargets"]
        return sorted((target["labels"]["job"], target["health"]) for target in found)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as response:
        return bytes(response.read())


def documented_bytes(image: str) -> int:
    """Return how large an image may be by the deployment page."""
    page = (ROOT / "docs/operators/deploy.md").read_text()
    (megabytes,) = re.findall(rf"^\| `{image}` \| (\d+) MB \|", page, re.MULTILINE)
    return int(megabytes) * 1_000_000
