"""Timelines: records of what all services did in the last seconds."""

from __future__ import annotations

from typing import Final

# At a gateway: GET, with ?last=<seconds>.
PATH: Final = "/v2/nereid/timeline"
