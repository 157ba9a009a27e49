"""What services remember of their last seconds: who did what, and when.

records.py is what a timeline is made of, on every service and wherever it is read.
"""

from __future__ import annotations

from typing import Final

# Where a gateway serves its mesh's timeline over HTTP: GET, with ?last=<seconds>.
PATH: Final = "/v2/nereid/timeline"
