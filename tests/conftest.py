"""What holds for all tests."""

import os

from hypothesis import HealthCheck, settings

# It times its examples, which on a busy machine says nothing of the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# The processes that tests start shall not each compile all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
