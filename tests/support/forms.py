"""The two forms of Nereid: pure Python, and with its hot modules compiled."""

from __future__ import annotations

import pytest

from nereid.version import is_compiled

# For what extends or replaces a part of a listed module, or counts its lines.
pure_only = pytest.mark.skipif(is_compiled(), reason="compiled classes cannot be changed or traced")
