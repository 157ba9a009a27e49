"""The module that model.py files import; see nereid_worker.api for what is in it."""

from nereid_worker.api import *  # noqa: F403 - the names are the API's
