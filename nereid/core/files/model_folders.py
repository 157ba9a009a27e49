"""Which folders of a repository are models, wherever it is."""

from __future__ import annotations

from typing import Final

# In the root of each ext2, ext3 and ext4 file system, and so of most volumes.
LOST_AND_FOUND: Final = "lost+found"


def may_be_model(name: str) -> bool:
    """Whether a folder of this name may be a model: .git, .ipynb_checkpoints and the like are not,
    nor is a file system's own.
    """
    return not name.startswith(".") and name != LOST_AND_FOUND
