"""The module that model.py files import; nereid_worker.pb_utils.api lists its names.

A worker registers the module in sys.modules by itself; this file is for processes that models
start.
"""

from nereid_worker.pb_utils.api import *  # noqa: F403 - the names are the API's
