"""Triton's classes, which model.py files import for annotations, and the rest of the API.

A worker registers the module in sys.modules by itself; this file is for processes that models
start.
"""

from nereid_worker.pb_utils.native_api import *  # noqa: F403 - the names are the API's
