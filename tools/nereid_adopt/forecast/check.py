"""`nereid adopt --check`: models of the old server, as `nereid check` sees their repository."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from nereid.core.known_backends import ENSEMBLE_PLATFORM, KNOWN_BACKENDS
from nereid.core.terminal import print_error, print_lines
from nereid_adopt.forecast.config_differences import config_differences
from nereid_adopt.forecast.control_calls import path_of, title_of
from nereid_adopt.forecast.known_differences import KNOWN_DIFFERENCES
from nereid_explain.server import CannotAskError, Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FORMAT: Final = "nereid.adopt.check/1"
_PROGRAM: Final = "nereid adopt --check"
_TIMEOUT_S: Final = 30.0
_CHECK_TIMEOUT_S: Final = 600.0
_BACKENDS: Final = frozenset({known.backend for known in KNOWN_BACKENDS} - {"tensorflow"})


def check_server(url: str, ca_file: str, repositories: Sequence[str], *, as_json: bool) -> int:
    """Print what will differ; return 0, or 1 if a model would not be served, or 2."""
    server = Server(url, "", {}, _TIMEOUT_S, ca_file)
    try:
        document = _document(server, _checked(repositories) if repositories else None)
    except (CannotAskError, OSError, ValueError, subprocess.SubprocessError) as error:
        print_error(_PROGRAM, error)
        return 2
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        print_lines(_lines(document))
    return 1 if any(model["problems"] for model in document["models"]) else 0


def _document(server: Server, checked: Mapping[str, Any] | None) -> dict[str, Any]:
    about = json.loads(server.read("/v2"))
    versions = [entry for entry in _entries(server) if entry.get("state") == "READY"]
    return {
        "format": FORMAT,
        "server": {name: about.get(name) for name in ("name", "version", "extensions")},
        "models": [_model(server, entry, checked) for entry in versions],
    }


def _entries(server: Server) -> list[dict[str, Any]]:
    """Return the entries of the index. Models without versions have none."""
    try:
        return server.index()
    except CannotAskError:
        try:
            # KServe's own server has names only.
            names = json.loads(server.read("/v2/models"))["models"]
            return [{"name": str(name), "state": "READY"} for name in names]
        except (CannotAskError, ValueError, LookupError, TypeError):
            pass
        raise


def _model(
    server: Server, entry: Mapping[str, Any], checked: Mapping[str, Any] | None
) -> dict[str, Any]:
    name, version = str(entry["name"]), str(entry.get("version") or "")
    problems: list[str] = []
    differences: list[str] = []
    config: dict[str, Any] = {}
    try:
        config = json.loads(server.read(f"{path_of(name, version)}/config"))
    except CannotAskError as error:
        # The extension is Triton's.
        if checked is None:
            problems.append(f"a mesh needs a model repository with its configuration: {error}")
        else:
            differences.append(f"not compared: {error}")
    if checked is not None:
        ours = checked.get(name)
        found = None if ours is None else _version(ours, version)
        if found is None:
            problems.append("the repository has no such model or version")
        elif found["state"] != "READY":
            problems.append(f"{found['state']}: {found['reason']}")
        elif config:
            differences += config_differences(config, found["config"] or {})
        problems += (
            f"{finding['message']} [{finding['code']}]"
            for finding in (ours or {}).get("findings", ())
            if finding["severity"] == "error"
        )
    elif (
        config
        and config.get("platform") != ENSEMBLE_PLATFORM
        and config.get("backend") not in _BACKENDS
    ):
        problems.append(f"no backend '{config.get('backend')}': it needs a plug-in")
    return {
        "name": name,
        "version": version,
        "problems": problems,
        "config_differences": differences,
        "known_differences": [known.title for known in KNOWN_DIFFERENCES if known.concerns(config)],
    }


def _version(model: Mapping[str, Any], version: str) -> Mapping[str, Any] | None:
    """Return a version; the last one for a model without versions."""
    found = [item for item in model["versions"] if version in {"", str(item["version"])}]
    return found[-1] if found else None


def _checked(repositories: Sequence[str]) -> dict[str, Any]:
    """Return what `nereid check` says of each model."""
    result = subprocess.run(
        [sys.executable, "-P", "-m", "nereid", "check", "--json", *repositories],
        capture_output=True,
        text=True,
        timeout=_CHECK_TIMEOUT_S,
        check=False,
    )
    try:
        document = json.loads(result.stdout)
    except ValueError as error:
        raise ValueError(f"nereid check: {result.stderr.strip()}") from error
    return {model["name"]: model for model in document["models"]}


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    server = document["server"]
    yield f"{server['name']} {server['version']}: {len(document['models'])} models"
    titles: Counter[str] = Counter()
    for model in document["models"]:
        yield f"{title_of(model['name'], model['version'])}: " + (
            "would not be served" if model["problems"] else "would be served"
        )
        yield from (f"  problem: {text}" for text in model["problems"])
        yield from (f"  configuration: {text}" for text in model["config_differences"])
        titles.update(model["known_differences"])
    for title, count in titles.most_common():
        yield f"may differ in {count} of the models: {title}"
    unserved = sum(bool(model["problems"]) for model in document["models"])
    yield f"{unserved} of {len(document['models'])} would not be served"
