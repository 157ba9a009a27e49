import bentoml
import numpy as np


@bentoml.service
class Double:
    @bentoml.api
    def double(self, x: np.ndarray) -> np.ndarray:
        return x * 2
