"""Shared by the clients of `textgen`: their arguments, and the check of the text."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from . import references


def arguments(about: str, url: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--url", default=url)
    parser.add_argument("--models", type=Path, default=Path("models"), help="the repository")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--length", type=int, default=32, help="how many tokens are wanted")
    parser.add_argument("--pause", type=int, default=0, help="milliseconds for each token")
    parser.add_argument("--stop", type=int, help="disconnect after so many tokens")
    return parser.parse_args()


def show(given: argparse.Namespace, tokens: Iterator[str]) -> bool:
    """Print tokens as they come; true if they are those that NumPy gives, as far as is known."""
    print(given.prompt, end="", flush=True)
    text = ""
    for count, token in enumerate(tokens, 1):
        print(token, end="", flush=True)
        text += token
        if count == given.stop:
            break
    print()
    expected = references.load(given.models, "textgen")
    known = dict(zip(expected["prompts"].tolist(), expected["texts"].tolist(), strict=True))
    reference = known.get(given.prompt)
    if reference is None:
        return True
    wanted = min(given.length if given.stop is None else given.stop, len(reference))
    right = text[:wanted] == reference[:wanted]
    print(f"textgen   {'as' if right else 'NOT as'} NumPy says it", file=sys.stderr)
    return right
