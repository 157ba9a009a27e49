"""Rules that tell models from other folders of a repository, for any kind of storage."""

from __future__ import annotations

from typing import Final

# In the root of every ext2, ext3 and ext4 file system, and so of most volumes.
LOST_AND_FOUND: Final = "lost+found"


def may_be_model(name: str) -> bool:
    """Return whether a folder with this name may be a model: not .git or lost+found."""
    return not name.startswith(".") and name != LOST_AND_FOUND
