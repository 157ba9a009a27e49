"""Files of a model's directory that have its configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nereid.core.variables import Variables
from nereid_scheduler.core.models.revision import CONFIG_FILE, CONFIG_FOLDER, overlay_file

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """Choice of files. name: of a file that replaces config.pbtxt. profile: of the overlays."""

    name: str = ""
    profile: str = ""
    variables: Variables = field(default_factory=Variables)

    @property
    def overlay(self) -> str:
        """Path of the overlay; empty without a profile."""
        return overlay_file(self.profile) if self.profile else ""

    @property
    def _custom(self) -> str:
        return f"{CONFIG_FOLDER}/{self.name}.pbtxt" if self.name else ""

    def paths(self) -> list[str]:
        """Return all paths that may be read."""
        return [path for path in (CONFIG_FILE, self._custom, self.overlay) if path]

    def choose(self, has_file: Callable[[str], bool]) -> str:
        """Return the path of the configuration below the overlay."""
        return self._custom if self._custom and has_file(self._custom) else CONFIG_FILE
