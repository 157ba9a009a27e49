"""Timelines: records of what all services did in the last seconds.

records.py defines the records, both for the services that make them and for readers.
"""

from __future__ import annotations

from typing import Final

# HTTP path of the mesh's timeline at a gateway: GET, with ?last=<seconds>.
PATH: Final = "/v2/nereid/timeline"
