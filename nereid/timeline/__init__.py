"""Timelines: records of the last seconds of all services.

records.py has the records, as services make them and as readers get them.
"""

from __future__ import annotations

from typing import Final

# HTTP path of a mesh's timeline at a gateway: GET, with ?last=<seconds>.
PATH: Final = "/v2/nereid/timeline"
