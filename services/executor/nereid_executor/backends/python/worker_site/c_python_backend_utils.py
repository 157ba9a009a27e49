"""Files import Triton's classes from here for annotations; has the rest of the API as well.

A worker registers it in sys.modules by itself; this file is for the processes that models start.
"""

from nereid_worker.pb_utils.native_api import *  # noqa: F403 - the names are the API's
