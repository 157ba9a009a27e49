import operator

import bentoml
import more_itertools
import numpy as np
import toolz


@bentoml.service
class Running:
    @bentoml.api
    def running(self, x: np.ndarray) -> np.ndarray:
        sums = np.array(list(toolz.accumulate(operator.add, x)))
        return sums - more_itertools.first(x)
