"""Classes that model.py files import for annotations; see triton_python_backend_utils."""

from nereid_worker.pb_utils.native_api import *  # noqa: F403 - the names are the API's
