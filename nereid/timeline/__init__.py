"""Timelines: records of what all services did in the last seconds."""

from __future__ import annotations

from typing import Final

# HTTP path at a gateway, for GET with ?last=<seconds>.
PATH: Final = "/v2/nereid/timeline"
