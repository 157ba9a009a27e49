"""The `nereid` command: starts services as processes and knows them only by their command lines."""

from __future__ import annotations

import importlib
import sys

_COMMANDS = {
    "serve": ("nereid_mesh.serve.command", "start a whole mesh on this machine"),
    "check": ("nereid_mesh.check.command", "say what is wrong with a model repository"),
    "explain": (
        "nereid_explain.command",
        "say why a model of a running mesh is not ready, or does not batch",
    ),
    "timeline": (
        "nereid_timeline.command",
        "say where the last seconds of a running mesh went, and write them as a trace",
    ),
    "perf": ("nereid_perf.command", "measure any KServe v2 server"),
    "analyze": ("nereid_analyze.command", "find a model's best settings by measuring"),
    "api-key": ("nereid_mesh.credentials.api_key", "make an API key for --auth-config"),
    "mesh-token": (
        "nereid_mesh.credentials.mesh_token",
        "make the secret that the services of a mesh share",
    ),
}


def main() -> None:
    """Run the command that argv names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in _COMMANDS:
        # Only this one's imports: the process of `serve` stays small.
        sys.exit(importlib.import_module(_COMMANDS[name][0]).main(sys.argv[2:]))
    if name in ("-V", "--version", "version"):
        # Imported on demand: it reads the metadata of installed packages.
        from nereid.version import is_compiled, version  # noqa: PLC0415

        print(f"nereid {version()}{' (compiled)' if is_compiled() else ''}")
        sys.exit(0)
    if name and name not in ("-h", "--help", "help"):
        print(f"nereid: unknown command '{name}'", file=sys.stderr)
    lines = [f"  nereid {each:11} {what}" for each, (_, what) in _COMMANDS.items()]
    print("usage: nereid COMMAND [FLAGS]   (nereid COMMAND --help lists a command's flags)")
    print(*lines, "  nereid --version", sep="\n")
    sys.exit(0 if name in ("-h", "--help", "help") else 2)
