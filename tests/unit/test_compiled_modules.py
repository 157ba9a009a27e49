"""Modules of folders that are marked as compiled: which form runs, what mypyc asks of them.

What mypyc accepts and compiles wrongly is checked in the source, whichever form runs.
"""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib import util
from pathlib import Path

import pytest

from nereid.version import is_compiled
from setup import marked_modules, source_directories

ROOT = Path(__file__).parents[2]
COMPILED = marked_modules("compiled", ROOT)
NAMES = list(COMPILED)
# What mypyc treats on its own, and built-in exceptions.
FOREIGN_BASES = {"ABC", "Enum", "Exception", "Generic", "IntEnum", "NamedTuple", "Protocol", "dict"}
BUILT_IN_TYPES = {
    "bool",
    "bytes",
    "dict",
    "float",
    "frozenset",
    "int",
    "list",
    "set",
    "str",
    "tuple",
}
# Not of a constant, which has no small letter.
CLASS_NAME = re.compile(r"_*[A-Z][A-Za-z0-9]*[a-z]")
SOURCES = {name: ast.parse((ROOT / path).read_text()) for name, path in COMPILED.items()}


def classes(tree: ast.AST) -> Iterator[tuple[ast.ClassDef, set[str]]]:
    """Each class with the names of its bases."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = (each.value if isinstance(each, ast.Subscript) else each for each in node.bases)
            yield node, {ast.unparse(each) for each in bases}


def test_all_of_them_run_in_the_form_that_was_asked_for() -> None:
    if asked := os.environ.get("NEREID_TEST_FORM"):
        assert is_compiled() == (asked == "compiled")
    ending = (".so", ".pyd") if is_compiled() else (".py",)
    for name in NAMES:
        spec = util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        assert spec.origin.endswith(ending)
        assert Path(spec.origin).resolve().is_relative_to(ROOT)


def test_they_extend_one_another_only() -> None:
    """mypyc takes weak references to an instance with an interpreted base for strong ones."""
    listed = {node.name for tree in SOURCES.values() for node, _ in classes(tree)}
    for name, tree in SOURCES.items():
        for node, bases in classes(tree):
            assert bases <= listed | FOREIGN_BASES, f"{name}: {node.name}"


def test_nothing_else_extends_them() -> None:
    """A TypeError where such a class is instantiated."""
    # NamedTuples, enumerations and protocols are ordinary classes, compiled or not.
    native = {
        (name, node.name)
        for name, tree in SOURCES.items()
        for node, bases in classes(tree)
        if not bases & (FOREIGN_BASES - {"Generic"})
    }
    roots = [ROOT / "nereid", *(ROOT / each for each in source_directories(ROOT) if each != ".")]
    compiled = {ROOT / path for path in COMPILED.values()}
    for root in roots:
        for file in root.rglob("*.py"):
            if file in compiled:
                continue
            tree = ast.parse(file.read_text())
            imported = {
                name.asname or name.name: (node.module, name.name)
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom)
                for name in node.names
            }
            for node, bases in classes(tree):
                extended = {imported.get(base) for base in bases}
                assert not extended & native, f"{file}: {node.name}"


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stands_for_errors_of_one_type(name: str) -> None:
    """A name has one type in a function: TypeError, where another handler's error is another's."""
    for function in ast.walk(SOURCES[name]):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            caught = defaultdict(set)
            for handler in handlers(function.body):
                if handler.name and handler.type:
                    caught[handler.name].add(ast.unparse(handler.type))
            for name, types in caught.items():
                assert len(types) == 1, f"{function.name}: {name} is {types}"


@pytest.mark.parametrize("name", NAMES)
def test_constants_are_final(name: str) -> None:
    """Compiled code looks up any other name of the module in a dict, at each use."""
    for node in SOURCES[name].body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            target, value = node.targets[0].id, ast.unparse(node.value)
            is_type = isinstance(node.value, ast.Subscript | ast.BinOp) and not target.isupper()
            is_logger = value.startswith("logging.getLogger(")
            assert is_type or is_logger or target == "__all__" or value.startswith("TypeVar(")


def test_no_slice_has_a_name() -> None:
    """A TypeError where compiled code takes a slice of bytes by a name that stands for a slice."""
    roots = [ROOT / "nereid", *(ROOT / each for each in source_directories(ROOT) if each != ".")]
    slices = {
        ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
        for root in roots
        for file in root.rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "slice"
    }
    assert "TRACE_ID" in slices
    for name, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript):
                assert ast.unparse(node.slice) not in slices, f"{name}: {ast.unparse(node)}"


# Of no inference request, or of one that was sent before.
HAVE_CLOSURES = {
    "_control",
    "load",
    "_spawn",
    "_await_first_run",
    "request_grants",
}


@pytest.mark.parametrize("name", NAMES)
def test_no_request_makes_a_closure(name: str) -> None:
    """A closure's environment refers to the closure: a cycle, which only a collection frees. A
    partial has none.
    """
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    for outer in ast.walk(SOURCES[name]):
        if isinstance(outer, functions) and outer.name not in HAVE_CLOSURES:
            inner = [each for each in ast.walk(outer) if isinstance(each, functions)]
            assert inner == [outer], f"{outer.name}: {inner[1].name}"


@pytest.mark.parametrize("name", NAMES)
def test_no_local_variable_is_a_type_alias(name: str) -> None:
    """mypyc leaves such a variable unset: UnboundLocalError."""
    for function in ast.walk(SOURCES[name]):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Assign):
                    assert not is_type(node.value), f"{function.name}: {ast.unparse(node)}"


def is_type(value: ast.AST) -> bool:
    """Whether an expression is a type, by the names of classes."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return is_type(value.left) or is_type(value.right)
    if isinstance(value, ast.Subscript):
        return is_type(value.value)
    return isinstance(value, ast.Name) and (
        value.id in BUILT_IN_TYPES or CLASS_NAME.match(value.id) is not None
    )


def handlers(body: Iterable[ast.AST]) -> Iterator[ast.ExceptHandler]:
    """Those of one function, without the ones within it."""
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(node, ast.ExceptHandler):
                yield node
            yield from handlers(ast.iter_child_nodes(node))


@pytest.mark.parametrize("name", NAMES)
def test_no_weak_references_and_no_attributes_that_c_reserves(name: str) -> None:
    reserved = {"_asm", "_attribute", "_const", "_inline", "_signed", "_thread", "_volatile"}
    for node in ast.walk(SOURCES[name]):
        if isinstance(node, ast.Attribute):
            assert node.attr not in reserved
        if isinstance(node, ast.Constant):
            assert node.value != "__weakref__"
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "Final":
            # mypyc takes such a tuple, kept as C's doubles, for one that was not set.
            is_tuple = isinstance(node.value, ast.Tuple)
            floats = is_tuple and any(
                isinstance(each, ast.Constant) and isinstance(each.value, float)
                for each in ast.walk(node.value or node)
            )
            assert not floats, ast.unparse(node)
