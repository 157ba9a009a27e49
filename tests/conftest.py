"""What holds for all tests."""

import os
from typing import Any, Final

from hypothesis import HealthCheck, settings

# It times its examples, which on a busy machine says nothing of the code.
_PATIENT: Final[dict[str, Any]] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}
# The same examples each time: a change is judged by what it changes. The other one looks for more.
settings.register_profile("patient", derandomize=True, database=None, **_PATIENT)
settings.register_profile("searching", max_examples=1000, **_PATIENT)
settings.load_profile("patient")

# The processes that tests start shall not each compile all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
