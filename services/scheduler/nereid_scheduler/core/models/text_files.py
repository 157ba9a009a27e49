"""Files of a version from which gateways learn how texts become its tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nereid.text.files import ALL, MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class TextFiles:
    """The files of one version that `nereid.text.files` names, as they were before its load."""

    # Key: path below the model's directory. Value: text that changes with the file.
    states: Mapping[str, str]
    # Returns a file of at most so many bytes; raises OSError, also if its state has changed.
    read_file: Callable[[str, int], bytes] = field(compare=False)

    def encoded_states(self) -> bytes:
        """Return bytes that change with any of the files."""
        return repr(sorted(self.states.items())).encode()

    def read(self) -> dict[str, bytes]:
        """Return the contents by path. May raise OSError, also above MAX_BYTES. Use a thread."""
        contents: dict[str, bytes] = {}
        left = MAX_BYTES
        for name in self.states:
            contents[name] = self.read_file(name, left)
            left -= len(contents[name])
        return contents


def find_text_files(place: str, has_file: Callable[[str], bool]) -> dict[str, str]:
    """Return the paths of files of text models by name. Those in a version's folder come first."""
    paths = {name: (f"{place}/{name}", name) for name in ALL}
    found = {name: next(filter(has_file, paths[name]), "") for name in ALL}
    return {name: path for name, path in found.items() if path}


def _read_nothing(name: str, limit: int) -> bytes:  # noqa: ARG001 (the signature of read_file)
    raise FileNotFoundError(name)


NO_TEXT_FILES: Final = TextFiles({}, _read_nothing)
