"""The module that model.py files import; nereid_worker.pb_utils.api lists its names.

A worker registers the module in sys.modules and does not import this file; processes that models
start import the file.
"""

from nereid_worker.pb_utils.api import *  # noqa: F403 - the names are the API's
