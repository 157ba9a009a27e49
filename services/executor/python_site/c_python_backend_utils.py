"""The same as triton_python_backend_utils: some files import Triton's classes from here."""

from nereid_worker.api import *  # noqa: F403 - the names are the API's
