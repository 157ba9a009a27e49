"""Decides which commands build an environment, and with which environment variables."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid_executor.backends.python.packages.requests import Lock
from nereid_executor.backends.python.packages.script_metadata import allows_python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nereid_executor.backends.python.packages.requests import PackageRequest

# A change of what is built for the same request has another number.
_FORM: Final = 2
_EXPORTED: Final = "exported.txt"
# Everything else in the executor's environment may be a secret, which setup.py must not see.
_INHERITED: Final = frozenset(
    {
        "ALL_PROXY", "CC", "CFLAGS", "CPATH", "CUDA_HOME", "CXX", "CXXFLAGS", "HOME",
        "HTTPS_PROXY", "HTTP_PROXY", "LANG", "LDFLAGS", "LD_LIBRARY_PATH", "LIBRARY_PATH",
        "LOGNAME", "NETRC", "NO_PROXY", "PATH", "PKG_CONFIG_PATH", "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR", "SSL_CERT_FILE", "TZ", "USER", "XDG_CONFIG_DIRS", "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
    }
)  # fmt: skip
_INHERITED_PREFIXES: Final = ("LC_", "PIP_", "UV_")
_WITHHELD_PREFIXES: Final = ("UV_PUBLISH_",)
# uv does not read pip's variables. Each is given to uv, unless one of uv's own says the same.
_PIP_TO_UV: Final = {
    "PIP_CONSTRAINT": ("UV_CONSTRAINT",),
    "PIP_EXTRA_INDEX_URL": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "PIP_FIND_LINKS": ("UV_FIND_LINKS",),
    "PIP_INDEX_URL": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "PIP_NO_INDEX": ("UV_NO_INDEX",),
    "PIP_TRUSTED_HOST": ("UV_INSECURE_HOST",),
}
# Variables that say where packages come from.
_SOURCES: Final = frozenset(
    {name for pip_name, names in _PIP_TO_UV.items() for name in (pip_name, *names)}
    - {"PIP_CONSTRAINT", "UV_CONSTRAINT"}
)
_COMMA_SEPARATED: Final = frozenset({"UV_FIND_LINKS"})


class Installer(NamedTuple):
    """The program that installs packages: uv's path, or the interpreter whose pip does."""

    program: str
    is_uv: bool = True


@dataclass(frozen=True)
class OwnPython:
    """The interpreter that runs the executor; environments are made for it if they can be."""

    executable: str
    version: tuple[int, int, int]
    # Text that differs for interpreters and platforms whose packages differ.
    platform: str
    # Site folder from which numpy is shared with environments that have none, and its version.
    numpy: tuple[str, str]


@dataclass(frozen=True)
class BuildPlan:
    """An environment to build. The digest of the request and of all rules is its name."""

    name: str
    request: PackageRequest
    # Request for uv to find a Python; empty: the executor's own.
    other_python: str
    wheelhouses: tuple[str, ...]


class PlanError(ValueError):
    """The environment cannot be built here; the text says why."""


def plan_build(
    request: PackageRequest,
    own: OwnPython,
    wheelhouses: Mapping[str, bytes],
    environ: Mapping[str, str],
    *,
    offline: bool,
) -> BuildPlan:
    """Return the plan for a request; raise PlanError if packages would have to come from outside.

    wheelhouses: folders with their digests. environ: variables of the build.
    """
    if offline and not wheelhouses:
        raise PlanError(
            f"{request.source} names packages, and there is no wheelhouse to install them from"
            " (--model-packages=offline): put wheels into 'wheels' beside it, or give"
            " --model-wheelhouse"
        )
    if wheelhouses and request.has_remote_source:
        raise PlanError(f"{request.source} names a URL, but packages come from a wheelhouse alone")
    is_own = allows_python(request.requires_python, own.version)
    rules = {name: text for name, text in environ.items() if name.startswith(("PIP_", "UV_"))}
    digests = sorted(digest.hex() for digest in wheelhouses.values())
    content = [
        _FORM,
        own.platform,
        own.executable,
        own.numpy,
        "" if is_own else request.requires_python,
        list(request.texts.items()),
        request.lock.value,
        digests,
        sorted(rules.items()),
    ]
    digest = hashlib.sha256(json.dumps(content).encode("utf-8", "surrogateescape"))
    return BuildPlan(
        digest.hexdigest()[:40],
        request,
        "" if is_own else request.requires_python,
        tuple(wheelhouses),
    )


def build_environ(
    environ: Mapping[str, str], target: Path, scratch: Path, *, has_wheelhouse: bool
) -> dict[str, str]:
    """Return the environment variables of a build: those of installers, and no secrets of others.

    target: the environment's folder, which uv sync is told by a variable alone. scratch: a folder
    for temporary files, and for downloads unless a variable names a cache.
    has_wheelhouse: packages come from nowhere else, whatever variables and files of installers say.
    """
    kept = {
        name: text
        for name, text in environ.items()
        if (name.upper() in _INHERITED or name.startswith(_INHERITED_PREFIXES))
        and not name.startswith(_WITHHELD_PREFIXES)
        and not (has_wheelhouse and name in _SOURCES)
    }
    for pip_name, uv_names in _PIP_TO_UV.items():
        if pip_name in kept and not any(name in kept for name in uv_names):
            text = kept[pip_name]
            is_list = uv_names[0] in _COMMA_SEPARATED
            kept[uv_names[0]] = ",".join(text.split()) if is_list else text
    cache = str(scratch / "cache")
    defaults = {"PIP_CACHE_DIR": cache, "UV_CACHE_DIR": cache}
    forced = {
        "TMPDIR": str(scratch),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "NO_COLOR": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PREVIEW_FEATURES": "pylock",
        "UV_PROJECT_ENVIRONMENT": str(target),
        "PYTHONNOUSERSITE": "1",
    }
    if has_wheelhouse:
        forced |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}
    return {**defaults, **kept, **forced}


def build_commands(
    plan: BuildPlan, own: OwnPython, installer: Installer, target: Path, scratch: Path
) -> list[list[str]]:
    """Return the commands that build an environment; raise PlanError if the installer cannot.

    scratch: the folder that has the request's texts.
    """
    request, lock, program = plan.request, plan.request.lock, installer.program
    if not installer.is_uv and (plan.other_python or lock not in (Lock.NONE, Lock.HASHES)):
        what = "another Python" if plan.other_python else "what only uv reads"
        raise PlanError(f"{request.source} needs {what}, and thereby uv (pip install uv)")
    first = scratch / next(iter(request.texts))
    is_exported = lock in (Lock.PROJECT, Lock.SCRIPT)
    sources = ["-r", _EXPORTED if is_exported else str(first)]
    rules = _source_rules(plan)
    # A project's lock has hashes of what comes from an index, and uv verifies those that it has.
    if lock not in (Lock.NONE, Lock.PROJECT):
        rules.append("--require-hashes")
    elif lock is Lock.NONE and plan.other_python:
        # The executor's own numpy, which pb_utils would use otherwise, is for its own Python.
        sources.append("numpy")
    place = ("--python", str(target / "bin/python"))
    if not installer.is_uv:
        return [
            [program, "-m", "venv", "--without-pip", str(target)],
            [program, "-m", "pip", *place, "install", "--progress-bar=off", *rules, *sources],
        ]
    offline = ["--offline"] if plan.wheelhouses else []
    python = plan.other_python or own.executable
    commands = [[program, "venv", *offline, "--python", python, str(target)]]
    project = ("--project", str(first.parent), "--frozen", "--no-dev")
    if lock is Lock.PROJECT and not plan.wheelhouses:
        # Where a project has sources of its own, only this uses them.
        return [*commands, [program, "sync", *project, "--no-install-project"]]
    if is_exported:
        what_of = (
            ("--script", str(first), "--frozen")
            if lock is Lock.SCRIPT
            else (*project, "--no-emit-project")
        )
        commands.append(
            [program, "export", "--quiet", *what_of, "--offline", "--output-file", _EXPORTED]
        )
    commands.append([program, "pip", "install", *offline, *place, *rules, *sources])
    return commands


def _source_rules(plan: BuildPlan) -> list[str]:
    links: Sequence[str] = plan.wheelhouses
    rules = [part for link in links for part in ("--find-links", link)]
    return ["--no-index", *rules] if links else []
