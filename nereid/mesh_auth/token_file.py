"""The tokens of --mesh-token-file, which may change while the process runs.

The first line is the token by which the process proves its role. Where it listens, it accepts the
tokens of lines `accept TOKEN` as well, so that a mesh's token can be replaced without a restart.
Other lines are comments. If a changed file is unusable, the previous tokens stay in use.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.mesh_auth.tokens import MeshToken
from nereid.rpc.net.tls_files import FileVersion

if TYPE_CHECKING:
    from collections.abc import Iterable

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
# Each may cost a refused call a digest.
_MAX_TOKENS: Final = 4
_ACCEPT: Final = "accept "


class TokenFile:
    """The tokens of a file. Any thread may use it."""

    def __init__(self, path: str, interval_s: float = _INTERVAL_S) -> None:
        """Read the file; raise ValueError, which shows no token, if it cannot be used.

        interval_s: least time between two looks at it.
        """
        self._path = path
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._version = FileVersion.of(path)
        self._tokens = read_tokens(path)
        self._next_look = time.monotonic() + interval_s

    def tokens(self) -> tuple[MeshToken, ...]:
        """Return the present tokens, the own one first; the same object until they change."""
        with self._lock:
            now = time.monotonic()
            if now >= self._next_look:
                self._next_look = now + self._interval_s
                version = FileVersion.of(self._path)
                if version != self._version and version.settled():
                    self._version = version
                    self._read_again()
            return self._tokens

    def _read_again(self) -> None:
        try:
            tokens = read_tokens(self._path)
        except ValueError as error:
            _log.warning("%s; keeping the former tokens", error)
            return
        if tokens[0].only is not self._tokens[0].only:
            _log.warning(
                "--mesh-token-file: '%s': its token is for another role; keeping the former tokens",
                self._path,
            )
            return
        self._tokens = tokens
        _log.info("tokens were read again: %s, accepted=%d", self._path, len(tokens))


def token_lines(tokens: Iterable[str]) -> str:
    """Return the content of a file with these tokens, the own one first."""
    return f"\n{_ACCEPT}".join(tokens) + "\n"


def read_tokens(path: str) -> tuple[MeshToken, ...]:
    """Return a file's tokens; raise ValueError, which shows none, if it cannot be used."""
    source = f"--mesh-token-file: '{path}'"
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ValueError(f"{source}: {reason}") from error
    first, *others = [line.strip() for line in lines] or [""]
    if not first:
        raise ValueError(f"{source}: its first line is empty")
    accepted = [line.removeprefix(_ACCEPT) for line in others if line.startswith(_ACCEPT)]
    texts = [first, *accepted]
    if len(texts) > _MAX_TOKENS:
        raise ValueError(f"{source}: it has more than {_MAX_TOKENS} tokens")
    try:
        tokens = tuple(map(MeshToken, texts))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    if len({token.only for token in tokens}) > 1:
        raise ValueError(f"{source}: its tokens are for different roles")
    return tokens
