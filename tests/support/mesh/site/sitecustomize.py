# mypy: ignore-errors
"""Imported by each Python process of a test's mesh before anything else; by no other process.

MESH_TEST_HOOKS (services are not given what begins with NEREID_) names files of hooks, with colons
between them: each has `HOOKS`, functions by the name of the module that they are called with once
it is imported. What they change, they change in processes of tests alone.
"""

import os
import sys
from importlib.machinery import PathFinder


class _Hooked:
    """A loader that calls hooks with the module that it has loaded."""

    def __init__(self, loader, hooks):
        self._loader, self._hooks = loader, hooks

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        for hook in self._hooks:
            hook(module)


class _Finder:
    """Finds the modules that have hooks."""

    def __init__(self, hooks):
        self._hooks = hooks

    def find_spec(self, name, path=None, target=None):
        if name not in self._hooks:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _Hooked(spec.loader, self._hooks[name])
        return spec


def install(paths):
    """Have the hooks in these files called, each once its module is imported."""
    found = {}
    for path in filter(None, paths):
        names = {"__file__": path, "__name__": "hooks"}
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not loaded in each process
            exec(compile(file.read(), path, "exec"), names)
        for module, hook in names["HOOKS"].items():
            found.setdefault(module, []).append(hook)
    if found:
        sys.meta_path.insert(0, _Finder(found))


install(os.environ.get("MESH_TEST_HOOKS", "").split(":"))
