"""Where files import Triton's classes from for their annotations; has the rest of the API, too."""

from nereid_worker.api import *  # noqa: F403 - the names are the API's
from nereid_worker.mesh import ResponseIterator  # noqa: F401 - likewise
from nereid_worker.metrics import COUNTER, GAUGE, HISTOGRAM, MetricKind  # noqa: F401 - likewise
from nereid_worker.requests import MemoryType  # noqa: F401 - likewise
