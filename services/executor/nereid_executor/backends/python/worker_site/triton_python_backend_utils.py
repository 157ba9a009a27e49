"""The module that model.py files import; nereid_worker.pb_utils.api lists what is in it.

A worker registers it in sys.modules by itself; this file is for the processes that models start.
"""

from nereid_worker.pb_utils.api import *  # noqa: F403 - the names are the API's
