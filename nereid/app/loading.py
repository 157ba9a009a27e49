"""Finding a model's application: the file that defines it, what that imports, and loading it."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import ModuleType

    from nereid.app.model import Model

_loading = False


class ServingReachedError(BaseException):
    """Ends the execution of an application's file in a worker, where it would serve."""


class Place(NamedTuple):
    """Definition of a function: a file and a name in it."""

    file: Path
    name: str


def end_loading() -> None:
    """End the execution of the application's file if this process only loads it."""
    if _loading:
        raise ServingReachedError


def place_of(model: Model) -> Place | None:
    """Return where workers find a model, or the bare function of one that takes requests.

    `None` if no name of a file leads to it.
    """
    target = model.target
    wanted = target if model.takes_requests else model
    module = sys.modules.get(target.__module__)
    file = getattr(module, "__file__", None)
    if file is None or "<locals>" in target.__qualname__ or not Path(file).is_file():
        return None
    name = target.__qualname__
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not wanted:
        names = [each for each, value in vars(module).items() if value is wanted]
        if not names:
            return None
        name = names[0]
    return Place(Path(file).resolve(), name)


def load_file(file: Path) -> ModuleType:
    """Execute a file as a module until it serves, or return the module if that was done."""
    global _loading  # noqa: PLW0603 - the file's own calls of serve() ask it
    root, name = _module_name(file)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    known = sys.modules.get(name)
    if known is not None:
        if Path(getattr(known, "__file__", None) or "") == file:
            return known
        if "." not in name:
            # The name is another module's: what the file imports counts.
            name = f"_nereid_{name}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "it is a Python file"
    assert spec.loader is not None, "it is a Python file"
    if "." in name:
        importlib.import_module(name.rpartition(".")[0])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    outer, _loading = _loading, True
    try:
        spec.loader.exec_module(module)
    except ServingReachedError:
        pass
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        _loading = outer
    return module


def named_object(module: ModuleType, name: str) -> Any:
    """Return what a dotted name stands for; raise AttributeError that says where it is missing."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise AttributeError(
                f"{module.__file__} defines no '{name}' before it serves: define it at the top"
                " level, not below `if __name__ == '__main__'`"
            )
        found = getattr(found, part)
    return found


def root_of(file: Path) -> Path:
    """Return the directory that the application imports its own modules from."""
    return _module_name(file)[0]


def application_files(file: Path) -> list[Path]:
    """Return the file and the modules below its root that it imports, also indirectly."""
    root = root_of(file)
    found = {file: None}
    pending = [file]
    while pending:
        path = pending.pop()
        package = path.parent.relative_to(root).parts
        for name in _imported(path, package):
            for each in _files_of(root, name):
                if each not in found:
                    found[each] = None
                    pending.append(each)
    return list(found)


def fingerprint(file: Path, name: str, others: Collection[str]) -> str:
    """Return a digest of what a model is made of; definitions of other models do not count.

    Raise SyntaxError if a file cannot be parsed.
    """
    digest = hashlib.blake2b()
    for path in application_files(file):
        tree = ast.parse(path.read_bytes(), str(path))
        if path == file:
            tree.body = [
                node
                for node in tree.body
                if getattr(node, "name", name) == name or getattr(node, "name", "") not in others
            ]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()


def _module_name(file: Path) -> tuple[Path, str]:
    """Return the directory to import from, and the dotted name of the file's module."""
    root, parts = file.parent, [file.stem]
    while (root / "__init__.py").is_file() and root.name.isidentifier():
        parts.insert(0, root.name)
        root = root.parent
    return root, ".".join(parts)


def _imported(path: Path, package: tuple[str, ...]) -> Iterator[str]:
    """Yield the dotted names that a file imports, relative ones made absolute."""
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from filter(None, (module, *(f"{module}.{name.name}" for name in node.names)))


def _files_of(root: Path, name: str) -> Iterator[Path]:
    """Yield the files below the root that importing a name executes."""
    path = root
    for part in name.split("."):
        path /= part
        if (path / "__init__.py").is_file():
            yield path / "__init__.py"
        elif path.with_name(f"{part}.py").is_file():
            yield path.with_name(f"{part}.py")
            return
        elif not path.is_dir():
            return
