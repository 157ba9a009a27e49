"""What a build runs, and what it sees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nereid_executor.backends.python.packages.build_commands import (
    Installer,
    OwnPython,
    PlanError,
    build_commands,
    build_environ,
    plan_build,
)
from nereid_executor.backends.python.packages.requests import Lock, PackageRequest

OWN = OwnPython("/python", (3, 11, 7), "cpython linux", ("/site", "2.0"))
REQUEST = PackageRequest(Path("/m/requirements.txt"), {"requirements.txt": "alpha"})
UV, PIP = Installer("/uv"), Installer("/python", is_uv=False)


def name(
    request: PackageRequest = REQUEST,
    own: OwnPython = OWN,
    wheels: bytes = b"",
    environ: dict[str, str] | None = None,
) -> str:
    wheelhouses = {"/wheels": wheels} if wheels else {}
    return plan_build(request, own, wheelhouses, environ or {}, offline=False).name


def test_an_environments_name_is_its_content() -> None:
    assert name() == name(replace(REQUEST, source=Path("/other")))
    assert name() == name(environ={"PATH": "/bin"})
    assert name(replace(REQUEST, requires_python=">=3.9")) == name()
    names = [
        name(),
        name(replace(REQUEST, texts={"requirements.txt": "beta"})),
        name(replace(REQUEST, lock=Lock.HASHES)),
        name(replace(REQUEST, lock=Lock.PYLOCK)),
        name(replace(REQUEST, requires_python=">=3.12")),
        name(own=replace(OWN, platform="cpython mac")),
        name(own=replace(OWN, executable="/other")),
        name(own=replace(OWN, numpy=("/site", "3.0"))),
        name(wheels=b"1"),
        name(wheels=b"2"),
        name(environ={"UV_INDEX": "x"}),
        name(environ={"PIP_INDEX_URL": "x"}),
    ]
    assert len(set(names)) == len(names)


def test_nothing_comes_from_outside_where_it_may_not() -> None:
    with pytest.raises(PlanError, match="no wheelhouse"):
        plan_build(REQUEST, OWN, {}, {}, offline=True)
    remote = replace(REQUEST, texts={"requirements.txt": "alpha @ https://host/a.zip"})
    with pytest.raises(PlanError, match="names a URL"):
        plan_build(remote, OWN, {"/wheels": b"1"}, {}, offline=False)
    assert name(remote)


def commands(request: PackageRequest, installer: Installer, wheels: str = "") -> list[str]:
    plan = plan_build(request, OWN, {wheels: b"1"} if wheels else {}, {}, offline=False)
    built = build_commands(plan, OWN, installer, Path("/env"), Path("/scratch"))
    return [" ".join(command) for command in built]


def test_commands_of_uv() -> None:
    assert commands(REQUEST, UV) == [
        "/uv venv --python /python /env",
        "/uv pip install --python /env/bin/python -r /scratch/requirements.txt",
    ]
    assert commands(REQUEST, UV, "/wheels") == [
        "/uv venv --offline --python /python /env",
        (
            "/uv pip install --offline --python /env/bin/python --no-index --find-links /wheels"
            " -r /scratch/requirements.txt"
        ),
    ]
    assert commands(replace(REQUEST, requires_python=">=3.12"), UV) == [
        "/uv venv --python >=3.12 /env",
        "/uv pip install --python /env/bin/python -r /scratch/requirements.txt numpy",
    ]
    script = replace(REQUEST, texts={"model.py": "", "model.py.lock": ""}, lock=Lock.SCRIPT)
    assert commands(script, UV)[1:] == [
        (
            "/uv export --quiet --script /scratch/model.py --frozen --offline"
            " --output-file exported.txt"
        ),
        "/uv pip install --python /env/bin/python --require-hashes -r exported.txt",
    ]


def test_commands_of_uv_for_its_own_locks() -> None:
    project = {"1/pyproject.toml": "", "1/uv.lock": ""}
    locked = replace(REQUEST, texts=project, lock=Lock.PROJECT)
    assert commands(locked, UV)[1:] == [
        "/uv sync --project /scratch/1 --frozen --no-dev --no-install-project"
    ]
    assert commands(locked, UV, "/wheels")[1:] == [
        (
            "/uv export --quiet --project /scratch/1 --frozen --no-dev --no-emit-project --offline"
            " --output-file exported.txt"
        ),
        (
            "/uv pip install --offline --python /env/bin/python --no-index --find-links /wheels"
            " -r exported.txt"
        ),
    ]
    locked = replace(REQUEST, texts={"pylock.toml": ""}, lock=Lock.PYLOCK)
    assert commands(locked, UV)[1:] == [
        "/uv pip install --python /env/bin/python --require-hashes -r /scratch/pylock.toml"
    ]
    for lock in (Lock.PROJECT, Lock.PYLOCK, Lock.SCRIPT):
        with pytest.raises(PlanError, match="what only uv reads"):
            commands(replace(REQUEST, lock=lock), PIP)


def test_commands_of_pip() -> None:
    assert commands(replace(REQUEST, lock=Lock.HASHES), PIP, "/wheels") == [
        "/python -m venv --without-pip /env",
        (
            "/python -m pip --python /env/bin/python install --progress-bar=off --no-index"
            " --find-links /wheels --require-hashes -r /scratch/requirements.txt"
        ),
    ]
    with pytest.raises(PlanError, match="another Python, and thereby uv"):
        commands(replace(REQUEST, requires_python=">=3.12"), PIP)


def test_a_build_sees_no_secrets() -> None:
    environ = {
        "PATH": "/bin",
        "https_proxy": "http://proxy",
        "AWS_SECRET_ACCESS_KEY": "s",
        "NEREID_MESH_TOKEN": "s",
        "UV_PUBLISH_TOKEN": "s",
        "PYTHONPATH": "/x",
        "PIP_INDEX_URL": "https://one",
        "PIP_FIND_LINKS": "/a /b",
        "PIP_EXTRA_INDEX_URL": "https://two",
        "UV_INDEX": "https://three",
        "UV_CACHE_DIR": "/cache",
    }
    seen = build_environ(environ, Path("/env"), Path("/scratch"), has_wheelhouse=False)
    assert "s" not in seen.values()
    assert "PYTHONPATH" not in seen
    assert seen["https_proxy"] == "http://proxy"
    assert seen["UV_DEFAULT_INDEX"] == "https://one"
    assert seen["UV_FIND_LINKS"] == "/a,/b"
    assert seen["UV_INDEX"] == "https://three"
    assert seen["UV_CACHE_DIR"] == "/cache"
    assert seen["PIP_CACHE_DIR"] == "/scratch/cache"
    assert seen["TMPDIR"] == "/scratch"


def test_beside_a_wheelhouse_no_other_source_counts() -> None:
    environ = {
        "PIP_FIND_LINKS": "/a",
        "UV_INDEX": "https://one",
        "PIP_CONSTRAINT": "/limits",
        "PIP_CONFIG_FILE": "/pip.conf",
    }
    seen = build_environ(environ, Path("/env"), Path("/scratch"), has_wheelhouse=True)
    assert not {"PIP_FIND_LINKS", "UV_FIND_LINKS", "UV_INDEX"} & seen.keys()
    assert seen["UV_CONSTRAINT"] == "/limits"
    assert seen["PIP_CONFIG_FILE"] == "/dev/null"
    assert seen["UV_NO_CONFIG"] == "1"
