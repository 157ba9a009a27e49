"""Write tests/conformance/triton_surface.json: the names in Triton's sources that users meet.

These are command-line options, HTTP routes, gRPC methods, metrics, fields of a model's
configuration, and parameters of backends. The arguments are git repositories: clones of server,
core, common and the backends onnxruntime, openvino, python, pytorch and tensorrt of
https://github.com/triton-inference-server. scripts/triton_reference.py then demands a line for each
name.

usage: triton_surface.py DIRECTORY...
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SURFACE = Path(__file__).parents[1] / "tests" / "conformance" / "triton_surface.json"

_OPTION = re.compile(r'\{\s*OPTION_\w+,\s*"([a-z0-9-]+)"')
_METRIC = re.compile(r'\.Name\("(nv_\w+)"\)|"(nv_\w+)"')
_RAW = re.compile(r'\w+_regex_\(\s*R"\((.*?)\)"\)')
_PATH = re.compile(r'uri->path->full\) == "(/[a-z0-9/]+)"')
# A path on the disk of a host, not a route.
_NO_ROUTE = re.compile(r"[\\:]{2}|platform|opt")
_OPENAI = "python/openai/openai_frontend"
_OPENAI_OPTION = re.compile(r'add_argument\(\s*"--([a-z-]+)"')
_OPENAI_ROUTE = re.compile(r'@router\.\w+\(\s*"(/[^"]+)"')
_GROUP = re.compile(r"\((\?:)?((?:[^()]|\([^()]*\))*)\)(\?)?")
_PARAMETER = re.compile(r'(?:GetParameterValue\(\s*\w+, |cmdline\.Find\()"([\w-]+)"')
_PARAMETERS = {
    "onnxruntime": (
        "src/onnxruntime.cc",
        re.compile(
            r"(?:params\.Find\(|cmdline\.Find\(|TryParseModelStringParameter\(\s*params, |"
            r"param_key == |_key =\s*)"
            r'"([\w.-]+)"'
        ),
    ),
    "openvino": (
        "src/openvino.cc",
        re.compile(
            r"(?:Parse(?:Bool|String)?Parameter\(|ReadParameter\(params,|cmd_json\.Find\()\s*"
            r'"([\w-]+)"'
        ),
    ),
    "pytorch": (
        "src/pt/model_state.cc src/pt2/model_state.cc src/model.py",
        re.compile(r'ParseParameter\(\s*\w+,\s*"(\w+)"|"(NUM_\w+|TORCH_\w+)"'),
    ),
    "python": ("src/python_be.cc", _PARAMETER),
    "tensorrt": ("src/model_state.cc src/tensorrt.cc", _PARAMETER),
}


class Repository:
    """The newest commit of a git repository."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.paths = frozenset(self._git("ls-tree", "-r", "--name-only", "HEAD").splitlines())
        self.commit = self._git("rev-parse", "HEAD").strip()

    def read(self, path: str) -> str:
        """Return a file's text."""
        return self._git("show", f"HEAD:{path}")

    def _git(self, *arguments: str) -> str:
        command = ("git", "-C", self._directory, *arguments)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Sources:
    """Files of all repositories by their paths."""

    def __init__(self, directories: Iterable[str]) -> None:
        self._repositories = [Repository(directory) for directory in directories]

    def read(self, path: str) -> str:
        """Return the text of a file; exit if no repository has it."""
        for repository in self._repositories:
            if path in repository.paths:
                return repository.read(path)
        sys.exit(f"none of the repositories has {path}")

    def below(self, folder: str) -> str:
        """Return the paths of the Python files below a folder."""
        paths = itertools.chain.from_iterable(each.paths for each in self._repositories)
        return " ".join(sorted(p for p in paths if p.startswith(folder) and p.endswith(".py")))

    def names(self, paths: str, pattern: re.Pattern[str]) -> list[str]:
        """Return the first group that matched, of all matches in these files."""
        text = "\n".join(map(self.read, paths.split()))
        return _sorted(next(filter(None, match)) for match in map(_groups, pattern.finditer(text)))


def surface(sources: Sources) -> dict[str, object]:
    """Return all names by their kind."""
    http = "src/http_server.cc src/http_server.h src/sagemaker_server.h"
    patterns = [name for name in sources.names(http, _RAW) if not _NO_ROUTE.search(name)]
    routes = itertools.chain.from_iterable(map(_expanded, patterns))
    return {
        "version": sources.read("TRITON_VERSION").strip(),
        "flags": sources.names("src/command_line_parser.cc", _OPTION),
        "routes": _sorted([*routes, *sources.names("src/http_server.cc", _PATH)]),
        "methods": _methods(sources),
        "openai_flags": sources.names(f"{_OPENAI}/main.py", _OPENAI_OPTION),
        "openai_routes": [
            re.sub(r"{\w+(:path)?}", "{}", route)
            for route in sources.names(sources.below(f"{_OPENAI}/frontend/"), _OPENAI_ROUTE)
        ],
        "metrics": sources.names("src/metrics.cc src/metric_model_reporter.h", _METRIC),
        "fields": _fields(sources),
        "parameters": {
            backend: sources.names(*where) for backend, where in sorted(_PARAMETERS.items())
        },
    }


def _groups(match: re.Match[str]) -> tuple[str, ...]:
    return match.groups()


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(set(names))


def _expanded(pattern: str) -> Iterator[str]:
    """Yield the routes that a regular expression of Triton's matches, {} for each free part."""
    pattern = pattern.replace("([^/]+)", "{}").replace("([0-9]+)", "{}")
    # The slash before a name may be left out, and nothing follows without the name.
    pattern = pattern.replace("(?:/)?{}?(/invoke)?", "(?:/{}(?:/invoke)?)?").replace("/?", "")
    match = _GROUP.search(pattern)
    if match is None:
        yield pattern
        return
    before, after = pattern[: match.start()], pattern[match.end() :]
    choices = _alternatives(match[2])
    if match[3]:
        choices.append("")
    for choice in choices:
        yield from _expanded(f"{before}{choice}{after}")


def _alternatives(text: str) -> list[str]:
    """Split at the bars that are in no group."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _descriptors(sources: Sources, name: str) -> FileDescriptorSet:
    with tempfile.TemporaryDirectory() as directory:
        for each in ("model_config", "grpc_service", "health"):
            (Path(directory) / f"{each}.proto").write_text(sources.read(f"protobuf/{each}.proto"))
        output = Path(directory) / "set"
        included = Path(protoc.__file__).with_name("_proto")
        options = [f"-I{directory}", f"-I{included}", f"--descriptor_set_out={output}"]
        code = protoc.main(["", *options, f"{name}.proto"])
        if code:
            sys.exit(f"{name}.proto cannot be read")
        return FileDescriptorSet.FromString(output.read_bytes())


def _methods(sources: Sources) -> list[str]:
    return _sorted(
        f"{service.name}.{method.name}"
        for name in ("grpc_service", "health")
        for file in _descriptors(sources, name).file
        for service in file.service
        for method in service.method
    )


def _fields(sources: Sources) -> list[str]:
    (file,) = _descriptors(sources, "model_config").file
    names = [f"{enum.name}.{value.name}" for enum in file.enum_type for value in enum.value]
    pending = [("", message) for message in file.message_type]
    while pending:
        outer, message = pending.pop()
        if message.options.map_entry:
            continue
        name = f"{outer}{message.name}."
        pending += [(name, nested) for nested in message.nested_type]
        names += [f"{name}{field.name}" for field in message.field]
        for enum in message.enum_type:
            names += [f"{name}{enum.name}.{value.name}" for value in enum.value]
    return _sorted(names)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    SURFACE.write_text(json.dumps(surface(Sources(sys.argv[1:])), indent=1) + "\n")
