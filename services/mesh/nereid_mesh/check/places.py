"""Places in configurations: the file and the line that set a parameter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.core.files.regular_files import read_regular_file
from nereid.model_config.text_fields import text_fields
from nereid_scheduler.core.models.revision import CONFIG_FILE

if TYPE_CHECKING:
    from nereid_scheduler.placement.models.catalogue import ServedModel

_PARAMETER: Final = re.compile(r"parameter '([^']+)'")


def place_of_parameter(model: ServedModel, name: str) -> str:
    """Return file and line of a model's parameter; empty if they are not known."""
    known = model.config_sources.get(f"parameters[{name}]")
    if known is not None:
        return known
    folder = next((Path(version.path).parent for version in model.versions.values()), Path())
    try:
        text = read_regular_file(folder / CONFIG_FILE).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return ""
    for field in text_fields(text):
        for entry in field.values if field.name == "parameters" else ():
            if any(part.name == "key" and part.values[0].text == name for part in entry.fields):
                return f"{CONFIG_FILE}:{entry.line}"
    return ""


def place_of_error(model: ServedModel, reason: str) -> str:
    """Return the place of the parameter that a failed load names; empty if there is none."""
    named = _PARAMETER.search(reason)
    return place_of_parameter(model, named[1]) if named else ""
