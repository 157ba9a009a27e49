"""Puts one model into a repository whole, or not at all.

A model is made in a folder outside the repository (a server that scans it must never see half a
model) and moved in by one rename. A stamp inside marks our own, complete models of a given
revision; any other folder of that name is left alone. Knows nothing of models.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

STAMP = "made-by-nereid-examples"

Make = Callable[[Path], None]
"""Writes one model (config.pbtxt, 1/model.onnx, expected/, ...) into an empty folder."""


class ForeignModelError(Exception):
    """A folder with the model's name exists and was not made by this script."""


def is_made(folder: Path, revision: int) -> bool:
    try:
        return (folder / STAMP).read_text() == f"{revision}\n"
    except FileNotFoundError:
        return False


def publish(folder: Path, revision: int, make: Make) -> None:
    """Make a model and move it to `folder`, replacing only what an earlier revision made."""
    if folder.exists() and not (folder / STAMP).exists():
        raise ForeignModelError(f"{folder} exists and is not an example model: remove or rename it")
    repository = folder.parent
    repository.mkdir(parents=True, exist_ok=True)
    # Beside the repository, so that the rename stays on one file system.
    with tempfile.TemporaryDirectory(prefix=".nereid-", dir=repository.resolve().parent) as scratch:
        made = Path(scratch) / folder.name
        made.mkdir()
        make(made)
        (made / STAMP).write_text(f"{revision}\n")
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
