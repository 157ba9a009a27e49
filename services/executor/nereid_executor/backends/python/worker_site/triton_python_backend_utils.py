"""The module that model.py files import.

A worker registers the module in sys.modules. Only processes that models start import this file.
"""

from nereid_worker.pb_utils.api import *  # noqa: F403 - the names are the API's
