"""Rules that tell models from other folders of a repository, for any kind of storage."""

from __future__ import annotations

from typing import Final

# Folder that every ext2, ext3 and ext4 file system, and so most volumes, has in its root.
LOST_AND_FOUND: Final = "lost+found"


def may_be_model(name: str) -> bool:
    """Return whether a folder with this name may be a model.

    Names like .git and .ipynb_checkpoints are not models, nor is lost+found, which belongs to the
    file system.
    """
    return not name.startswith(".") and name != LOST_AND_FOUND
