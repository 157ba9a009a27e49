"""Check that names and log lines use the glossary's words, and that the documentation is short.

The glossary is in docs/architecture.md. In the product, no docstring or comment may begin with a
word such as "Of" or "What", which leaves out the subject.

usage: check_words.py [--count] [PATH ...]

The script checks the words of every defined name (functions, classes, arguments, variables,
attributes, modules) and the texts of log calls. --count also counts refused words in comments and
strings. Without PATH, the script also checks that the documentation pages together have no more
than a maximum number of words.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Words that are refused, and the words to use instead.
WORDS = {
    "answer": "response; reply (verb: respond, complete)",
    "fault": "error",
    "verdict": "outcome, status",
    "room": "buffer, slot, capacity",
    "pen": "lock",
    "stay": "session",
    "taker": "client, receiver",
    "tell": "notify, report, send",
    "told": "notified, reported, sent",
    "hear": "receive, on_<event>",
    "heard": "received",
    "late": "deferred; accepted",
    "fate": "outcome, crash recovery",
    "stranded": "waiting for an executor",
    "stranding": "waiting for an executor",
    "lineage": "nested calls",
    "slab": "segment",
    "intake": "admission",
    "alarm": "timer",
    "errand": "callbacks, context",
}
_FORMS = {
    form: word
    for word in WORDS
    for form in (
        word,
        f"{word}s",
        f"{word}ed",
        f"{word}ing",
        f"{word.removesuffix('e')}ing",
    )
}
_PHRASES = ("under way", "is gone", "nobody's", "no taker", "in passing", "hears of")
_ROOTS = (
    "nereid",
    "services",
    "plugins",
    "tools",
    "tests",
    "benchmarks",
    "examples",
    "scripts",
)
_PRODUCT = {"nereid", "plugins", "services", "tools"}
_HEADLESS_COMMENT = re.compile(
    r"(Of|What|Whatever|Whether|Who|Whoever|Whom|Whose|Which|Those|None:|Nor|Neither|Such|That)\b"
)
_HEADLESS_DOCSTRING = re.compile(
    _HEADLESS_COMMENT.pattern.replace("(", "(Where|Wherever|How|As|By|With|To|From|It|They|Its|", 1)
)
_PAGES = ("docs", "README.md", "CONTRIBUTING.md")
# Generated pages are as long as what they list.
_GENERATED = "<!-- Written by "
# A record grows with what it records.
_RECORDS = ("track-record.md",)
_MAX_PAGE_WORDS = 67_250
_LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_SKIPPED = ("_pb2.py", "_pb2.pyi")
# Models are as users write them; those of the conformance table run on Triton as well.
_USER_CODE = "python_models"


def words_of(name: str) -> list[str]:
    """Return the words of an identifier in snake_case, CamelCase or CAPITALS, in lower case."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name).replace("_", " ")
    return spaced.lower().split()


def defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names that a module defines, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def log_texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the texts of log calls, with their lines."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _LEVELS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in {"log", "_log", "logger", "logging"}
        ):
            for child in ast.walk(node):
                if isinstance(child, ast.Constant) and isinstance(child.value, str):
                    yield child.lineno, child.value


def headless(path: Path) -> Iterator[str]:
    """Yield a line for each docstring and comment of the product that begins without a subject."""
    if path.parts[0] not in _PRODUCT:
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            first = text.partition("\n")[0]
            if _HEADLESS_DOCSTRING.match(first):
                line = getattr(node, "lineno", 1)
                yield f"{path}:{line}: '{first}' begins without a subject"
    comment_line = -1
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                line, text = token.start[0], token.string.lstrip("#: ")
                if line != comment_line + 1 and _HEADLESS_COMMENT.match(text):
                    yield f"{path}:{line}: '{text}' begins without a subject"
                comment_line = line


def findings(path: Path) -> Iterator[str]:
    """Yield a line for each refused word in a file."""
    tree = ast.parse(path.read_text())
    seen = {*defined_names(tree), (1, path.stem)}
    for line, name in sorted(seen):
        for word in words_of(name):
            if word in _FORMS:
                yield f"{path}:{line}: '{name}': say {WORDS[_FORMS[word]]}"
    for line, text in log_texts(tree):
        for word in re.findall(r"[a-z]+", text.lower()):
            if word in _FORMS:
                yield f"{path}:{line}: log line says '{word}': say {WORDS[_FORMS[word]]}"
        for phrase in _PHRASES:
            if phrase in text.lower():
                yield f"{path}:{line}: log line says '{phrase}'"


def prose_count(paths: list[Path]) -> Counter[str]:
    """Return how often each refused word is in comments and strings, including docstrings."""
    count: Counter[str] = Counter()
    for path in paths:
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type in (tokenize.COMMENT, tokenize.STRING):
                    text = token.string.lower()
                    count.update(word for word in re.findall(r"[a-z]+", text) if word in _FORMS)
                    count.update({phrase: n for phrase in _PHRASES if (n := text.count(phrase))})
    return count


def page_words(roots: list[Path]) -> int:
    """Return the number of words, as wc -w counts them, of pages written by hand.

    Record pages (_RECORDS) and generated pages do not count.
    """
    pages = [page for root in roots for page in (root.rglob("*.md") if root.is_dir() else [root])]
    texts = [page.read_text() for page in pages if page.name not in _RECORDS]
    return sum(len(text.split()) for text in texts if _GENERATED not in text)


def main() -> int:
    """Check the paths, print the findings, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", action="store_true", help="count the words in prose, too")
    parser.add_argument("paths", nargs="*", type=Path)
    arguments = parser.parse_args()
    paths = sorted(
        path
        for root in arguments.paths or map(Path, _ROOTS)
        for path in (root.rglob("*.py") if root.is_dir() else [root])
        if not path.name.endswith(_SKIPPED) and _USER_CODE not in path.parts[:-1]
    )
    found = [line for path in paths for line in (*findings(path), *headless(path))]
    print(*found, sep="\n", end="\n" if found else "")
    if arguments.count:
        count = prose_count(paths)
        print(f"{count.total()} in prose:", ", ".join(f"{w} {n}" for w, n in count.most_common()))
    print(f"{len(found)} names and log lines, {len(paths)} files", file=sys.stderr)
    if not arguments.paths and (words := page_words(list(map(Path, _PAGES)))) > _MAX_PAGE_WORDS:
        print(f"{words} words in {', '.join(_PAGES)}, more than {_MAX_PAGE_WORDS}: explain each")
        print("thing once, link to it from elsewhere, and drop what has been superseded")
        return 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
