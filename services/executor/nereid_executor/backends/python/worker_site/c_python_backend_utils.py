"""The module c_python_backend_utils: classes that model.py files import for annotations.

The module has all names of the API as well. A worker registers it in sys.modules and does not
import this file; processes that models start import the file.
"""

from nereid_worker.pb_utils.native_api import *  # noqa: F403 - the names are the API's
