"""Change of the versions in service by a load or unload that names a version."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nereid.pb import kserve_pb2

VERSION: Final = "version"
_NUMBER: Final = re.compile(r"0|[1-9]\d{0,18}", re.ASCII)


class VersionChange(NamedTuple):
    """Addition of one version to those in service, or its removal."""

    version: int
    is_added: bool

    def apply(self, in_service: Iterable[int]) -> tuple[int, ...]:
        """Return the versions to serve, ascending."""
        others = {version for version in in_service if version != self.version}
        return tuple(sorted({*others, self.version} if self.is_added else others))


def read_version(parameters: Mapping[str, kserve_pb2.ModelRepositoryParameter]) -> int | None:
    """Return the version that a load or unload names, if any; raise InvalidArgument."""
    if VERSION not in parameters:
        return None
    parameter = parameters[VERSION]
    kind = parameter.WhichOneof("parameter_choice")
    text = str(parameter.int64_param) if kind == "int64_param" else parameter.string_param
    if kind not in ("int64_param", "string_param") or not _NUMBER.fullmatch(text):
        raise InvalidArgument(
            f"invalid value for parameter '{VERSION}', expected the number of a version."
        )
    return int(text)
