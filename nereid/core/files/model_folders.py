"""The folders of a repository that are models, wherever the repository is."""

from __future__ import annotations

from typing import Final

# Folder in the root of each ext2, ext3 and ext4 file system, and so of most volumes.
LOST_AND_FOUND: Final = "lost+found"


def may_be_model(name: str) -> bool:
    """Return whether a folder of this name may be a model.

    Names like .git and .ipynb_checkpoints are not models, nor is a file system's own folder.
    """
    return not name.startswith(".") and name != LOST_AND_FOUND
