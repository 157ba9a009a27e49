import operator

import more_itertools
import numpy as np
import toolz
from pytriton.decorators import sample
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton


@sample
def running(x):
    sums = np.array(list(toolz.accumulate(operator.add, x)), np.float32)
    return {"output": sums - more_itertools.first(x)}


with Triton() as triton:
    triton.bind(
        model_name="running",
        infer_func=running,
        inputs=[Tensor(name="x", dtype=np.float32, shape=(-1,))],
        outputs=[Tensor(name="output", dtype=np.float32, shape=(-1,))],
        config=ModelConfig(batching=False),
    )
    triton.serve()
